package supervise

// machineClock is CLOCK_MONOTONIC, which x/sys does not define for NetBSD.
const machineClock = 3
