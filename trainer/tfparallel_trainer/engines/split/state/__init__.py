"""State that is divided over ranks: checkpoints, initial weights, the exported model."""
