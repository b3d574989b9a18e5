"""Says in one sentence why a job waits, fails or is slow, with evidence and a remedy.

`gather` reads the facts about a job; `rules` turns them into a diagnosis. `no_operator` has the
rule for jobs without an operator, `pending` for pods that wait, and `slowness` for training that
runs; `endings` describes exits. `time_spent` adds where the job's time went. `findings` defines the
values. All except `gather` are pure.
"""
