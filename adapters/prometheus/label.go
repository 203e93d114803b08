package natslockprom

import "strings"

const (
	// Label is the name of the label that stands for lock names.
	Label = "lock"
	// Other is the label of locks beyond [MaxLabels].
	Other = "other"
	// MaxLabels limits the values of the lock label, not counting [Other]. Names with an id in
	// their first token would otherwise each create a set of series.
	MaxLabels = 100
)

// FirstToken returns the part of a name before the first dot: "orders" of "orders.42".
func FirstToken(name string) string {
	token, _, _ := strings.Cut(name, ".")
	return token
}
