package faults

import (
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

var wrapStore = bridge.WrapStore.(func(func(kvstore.KV) kvstore.KV) natslock.Option)

// WrapStore is an option of natslock.New: the client uses what wrap returns instead of
// its store, such as a [Store]. The client closes it. A nil wrap is refused with
// natslock.ErrInvalid.
func WrapStore(wrap func(kvstore.KV) kvstore.KV) natslock.Option { return wrapStore(wrap) }
