// Package kit has the helpers of tests in more than one package.
package kit
