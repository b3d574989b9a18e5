"""Why a job is as it is, in one sentence with evidence and a remedy.

`gather` reads what a place knows of a job; `rules` turns that into a finding. `unseen` has the rule
for jobs without an operator, `pending` for pods that wait, and `slowness` for training that runs;
`endings` describes exits. `findings` holds the values. All but `gather` are pure.
"""
