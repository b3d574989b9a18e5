"""Parts of a status: `conditions`, those of reports (`reported_conditions`), `goodput` and
`replica_records`."""
