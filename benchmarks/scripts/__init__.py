"""What the trainer is compared with; each prints a JSON line for each thing that is timed."""
