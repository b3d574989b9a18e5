"""What the ranks of a process do together in a step and outside of steps."""
