package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestAdopting: only the record that was handed over is adopted, and a refusal is read again.
func TestAdopting(t *testing.T) {
	handed := stored(10, "me", 0, record.StatusHanded)
	handed.Token = 640
	other := handed
	other.Token = 641
	for _, c := range []struct {
		name  string
		found record.Entry
		want  Adoption
	}{
		{"handed over", handed, Adoptable},
		{"another token", other, AdoptKept},
		{"kept", stored(10, "me", 1, record.StatusHeld), AdoptKept},
		{"broken", stored(11, "me", 0, record.StatusBroken), AdoptBroken},
		{"deleted by a break", ended(11, "me", record.StatusBroken), AdoptBroken},
		{"gone", ended(11, "me", record.StatusGone), AdoptGone},
		{"nothing", record.Entry{}, AdoptGone},
		{"taken", stored(12, "you", 1, record.StatusHeld), AdoptTaken},
		{"handed over by another claim", stored(12, "you", 1, record.StatusHanded), AdoptTaken},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &Adopting{ID: "me", Token: 640}
			for i := range 2 {
				found, again := a.Found(c.found)
				require.Equal(t, c.want, found)
				require.Equal(t, i == 0 && c.want != Adoptable, again)
			}
		})
	}
}

// TestAdoptingExpired: that the time of the record is over is a refusal like others.
func TestAdoptingExpired(t *testing.T) {
	a := &Adopting{ID: "me", Token: 640}
	for i := range 2 {
		found, again := a.Expired()
		require.Equal(t, AdoptExpired, found)
		require.Equal(t, i == 0, again)
	}
}
