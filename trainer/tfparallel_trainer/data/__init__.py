"""Examples: their order, and their division over ranks."""
