"""The evaluator: a separate process that evaluates each new checkpoint during training."""
