// Package queue guards the order of those that wait for a lock, and that somebody always gets in:
// clients are served in the order of their tickets, a waiter that dies, stops or gives up holds
// nobody up for longer than the documents say, and what it has left keeps nobody out. That holds
// where notifications are lost, where replicas lag, and for impatient callers. Package cohort has the
// order among the goroutines of one client.
package queue
