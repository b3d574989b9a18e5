"""What a run reports: lines for people, JSON lines for machines, TensorBoard."""
