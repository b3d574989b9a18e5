"""How a graph is cut into stages, and in which order they work."""
