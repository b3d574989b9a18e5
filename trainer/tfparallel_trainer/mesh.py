"""The mesh, for rules of people's own that split layers (docs/how-to/splitting-layers.md)."""

from tfparallel_trainer.comms import shape

__all__ = ["shape"]
