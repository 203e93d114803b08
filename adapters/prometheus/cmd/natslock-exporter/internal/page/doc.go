// Package page serves a read-only page of the locks of a bucket: a live table, a page for
// each lock, and the events of all of them.
//
// A [Hub] asks its [Source] twice a second which locks have changed, and encodes what has
// changed once for all viewers. A viewer that does not keep up gets all anew instead of what
// it has missed, so nobody waits for it and its memory is bounded. Without viewers the hub
// computes nothing. The functions in view.go, events.go and timeline.go make what is shown of
// what the library returns, and know neither clocks nor requests. Names, owners and metadata
// travel as JSON only, and the scripts in web make text nodes of them.
package page
