// Package settings changes each setting of a bucket while clients run, and checks what happens
// to their locks. docs/operate/bucket-changes.md lists the outcomes.
package settings
