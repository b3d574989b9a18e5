"""How a run may end: SIGTERM, stalls and faults of machines."""
