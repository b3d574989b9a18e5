"""Rules for splitting layers: one for each kind of layer and sharding."""
