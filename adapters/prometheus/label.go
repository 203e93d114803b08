package natslockprom

import "strings"

const (
	// Label is the name of the label that stands for lock names.
	Label = "lock"
	// Other is the label value for locks beyond [MaxLabels].
	Other = "other"
	// MaxLabels limits the number of values of the lock label, not counting [Other].
	// Without a limit, names with an id in their first token would each create a set of
	// series.
	MaxLabels = 100
)

// FirstToken returns the part of a name before the first dot, such as "orders" for
// "orders.42".
func FirstToken(name string) string {
	token, _, _ := strings.Cut(name, ".")
	return token
}
