"""The referee: what ranks compute together is compared with one process while a job trains.

`checks` decides when and runs a check; `sampling` takes its examples from the batch; `trials` has
what ranks give; `reference` computes the same in the plainest way; `draws` makes what is random
alike; `snapshots` restores the state; `comparison` measures differences; `findings` names a fault.
"""
