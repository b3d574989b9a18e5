"""The referee: what ranks compute together is compared with one process while a job trains.

docs/explanation/referee.md argues it. `inspection` decides when to check, and what follows.
`sampling` takes the examples from the batch. `sides` runs both sides: what an engine brings
(`trials`), and Keras' own step (`reference`). `draws` makes random numbers alike. `snapshots`
restores the state. `observations` says what is compared, and `comparison` how. `tables` lets all
ranks know what each has. `findings` names a fault.
"""
