"""What a run tells: lines for people, JSON lines for machines, TensorBoard."""
