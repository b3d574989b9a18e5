"""Parts of a status: `conditions`, those of reports (`reported_conditions`), `replica_records`."""
