// Package settings changes each setting of a bucket while clients run, and says what becomes
// of their locks. docs/operate/bucket-changes.md has the outcome.
package settings
