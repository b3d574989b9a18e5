"""`tfparallel rehearse`: runs a job without and with faults, and measures what each fault costs.

`faults` parses the options, `fault_injection` injects the faults, and `job_runs` makes both runs.
`recovery` reads from their records what each fault cost. `young_daly` estimates goodput.
`rehearsal` leads from a job to the result, and `rehearsal_text` prints it.
"""
