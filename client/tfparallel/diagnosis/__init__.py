"""Why a job is as it is, in one sentence with evidence and a remedy.

`gather` reads what a place knows of a job; `rules` turns that into a finding, with `pending` for
pods that wait, `unbound_claims` for their volumes, `endings` for exits and `pace` for training that
runs. `findings` holds the values. All but `gather` are pure.
"""
