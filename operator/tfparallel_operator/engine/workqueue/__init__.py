"""Which job is looked at next, and when: a queue of distinct keys, timers, pauses and turns."""
