"""Log lines and metrics of the engine."""
