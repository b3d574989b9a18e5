"""Layouts and communication, for rules of people's own that split layers."""

from tfparallel_trainer.engines.split.layers import adjoint, layout

__all__ = ["adjoint", "layout"]
