package faults

import (
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
)

var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// WrapStore is an option for natslock.New. The client uses, and later closes, what wrap
// returns, such as a [Store], instead of its own store. A nil wrap is refused with
// natslock.ErrInvalid.
func WrapStore(wrap func(kvstore.KV) kvstore.KV) natslock.Option { return inside.WrapStore(wrap) }
