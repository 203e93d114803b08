// Package queue guards the order of a lock's waiters, and that some waiter always gets in.
// Clients are served in ticket order. A waiter that dies, stops or gives up delays the others
// no longer than documented, and nothing that it leaves behind keeps them out. That holds even
// if notifications are lost, replicas lag or callers are impatient. Package cohort covers the
// order among one client's goroutines.
package queue
