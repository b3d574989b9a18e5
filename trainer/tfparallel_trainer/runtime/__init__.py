"""What surrounds a run: settings, what is checked before it, its preparation, and its course."""
