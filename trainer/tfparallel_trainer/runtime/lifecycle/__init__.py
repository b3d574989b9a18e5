"""How a run may end: SIGTERM, stalls, faults of machines, and what an exception means."""
