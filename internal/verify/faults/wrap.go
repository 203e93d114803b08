package faults

import (
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// WrapStore is an option of natslock.New: the client uses what wrap returns instead of
// its store, such as a [Store]. The client closes it. A nil wrap is refused with
// natslock.ErrInvalid.
func WrapStore(wrap func(kvstore.KV) kvstore.KV) natslock.Option { return inside.WrapStore(wrap) }
