"""The evaluator: a process of its own that evaluates each new checkpoint during training."""
