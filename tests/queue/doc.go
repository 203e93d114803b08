// Package queue tests that a lock's waiters are served in ticket order and that some waiter always
// gets in. A waiter that dies, stops or gives up delays the others no longer than documented, and
// nothing it leaves behind keeps them out, even if notifications are lost, replicas lag or callers
// are impatient. Package cohort covers the order among the goroutines of one client.
package queue
