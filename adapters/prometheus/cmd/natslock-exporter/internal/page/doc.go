// Package page serves a read-only page of a bucket's locks: a live table, a page for each
// lock, and the events of all locks.
//
// Twice a second, a [Hub] reads the locks that its [Source] has reported as changed, and
// encodes the changes once for all viewers. A viewer that falls behind is sent the full
// state instead of the updates that it missed, so no one has to wait for that viewer and
// the memory it uses stays bounded. Without viewers, the hub computes nothing. The
// functions in view.go, events.go and timeline.go convert what the library returns into
// what is shown, and depend on neither clocks nor requests. Names, owners and metadata
// are sent only as JSON, and the scripts in web turn them into text nodes.
package page
