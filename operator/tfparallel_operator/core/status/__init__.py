"""What a status says and carries: `conditions`, `replica_records` and their `indices`."""
