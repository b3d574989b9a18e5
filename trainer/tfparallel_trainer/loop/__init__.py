"""The outer loop: epochs, steps, checkpoints and evaluation, whatever makes the steps."""
