// Package queue guards the order of waiters for a lock, and that some waiter always gets in.
// Clients are served in ticket order. A waiter that dies, stops or gives up delays no other for
// longer than documented, and what it leaves behind keeps none out. That holds even if
// notifications are lost or replicas lag, and for impatient callers. Package cohort covers the
// order among the goroutines of one client.
package queue
