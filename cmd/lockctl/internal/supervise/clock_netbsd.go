package supervise

// machineClock is CLOCK_MONOTONIC, which x/sys has no name for.
const machineClock = 3
