"""What a status says and carries: `conditions` and `replica_records`."""
