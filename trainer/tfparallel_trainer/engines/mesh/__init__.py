"""Synchronous training: every rank has the whole model and a part of each batch."""
