"""State on disk: checkpoints with keys that survive a rebuild, initial weights, the export."""
