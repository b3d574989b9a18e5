"""Which job is reconciled next, and when: queue, turns of namespaces, timers and backoff."""
