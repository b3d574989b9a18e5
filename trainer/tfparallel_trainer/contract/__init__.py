"""What the trainer and whoever starts it agree on: job file, environment, exit codes, progress.

Plain values without TensorFlow and without Kubernetes, so that both sides import them.
"""
