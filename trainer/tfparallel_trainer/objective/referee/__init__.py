"""The referee: what ranks compute together is compared with one process while a job trains.

docs/explanation/referee.md argues it. `replica_referee` decides when to check copies of a model,
and what follows; `engines.split.referee` and `engines.servers.server_referee` do so for the other
engines. `sampling` takes the examples from the batch. `sides` runs both sides: what an engine
brings (`trials`), and Keras' own step (`keras_step`). `reference_model` computes the second side
in the host's memory, where no rank holds the whole model, and `judgement` compares with it.
`draws` makes random numbers alike. `snapshots` restores the state. `observations` says what is
compared, and `comparison` how. `tables` lets all ranks know what each has. `findings` names a
fault.
"""
