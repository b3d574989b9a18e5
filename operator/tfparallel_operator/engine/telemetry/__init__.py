"""What the engine says of itself: log lines and metrics."""
