// Package page serves a read-only page of the locks of a bucket: a live table, a page for
// each lock, and the events of all of them.
//
// Twice a second a [Hub] reads the locks that its [Source] has reported as changed, and
// encodes the changes once for all viewers. A viewer that does not keep up gets everything
// anew instead of what it missed, so no one waits for it and its memory is limited. Without
// viewers the hub computes nothing. The functions in view.go, events.go and timeline.go turn
// what the library returns into what is shown, and use neither clocks nor requests. Names,
// owners and metadata travel only as JSON, and the scripts in web turn them into text nodes.
package page
