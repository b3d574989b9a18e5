"""Examples: their order, and which rank gets which."""
