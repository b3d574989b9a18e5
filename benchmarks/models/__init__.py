"""What is trained, as users write it."""
