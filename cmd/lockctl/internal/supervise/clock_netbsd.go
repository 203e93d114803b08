package supervise

// machineClock is CLOCK_MONOTONIC, which x/sys does not define here.
const machineClock = 3
