package natslockprom

import "strings"

const (
	// Label is the name of the label that stands for the name of a lock.
	Label = "lock"
	// Other is the label of locks beyond [MaxLabels].
	Other = "other"
	// MaxLabels is the number of values of the label of the locks, besides [Other]. Names with
	// an id in their first token would otherwise make a set of series each.
	MaxLabels = 100
)

// FirstToken returns the part of a name before the first dot: "orders" of "orders.42".
func FirstToken(name string) string {
	token, _, _ := strings.Cut(name, ".")
	return token
}
