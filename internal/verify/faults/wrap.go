package faults

import (
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// WrapStore is an option of natslock.New. The client uses what wrap returns, such as a
// [Store], instead of its own store, and closes it. A nil wrap is refused with
// natslock.ErrInvalid.
func WrapStore(wrap func(kvstore.KV) kvstore.KV) natslock.Option { return inside.WrapStore(wrap) }
