"""Parts of a status: `conditions` and `replica_records`."""
