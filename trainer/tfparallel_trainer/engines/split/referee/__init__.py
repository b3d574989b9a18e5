"""Compares steps of a divided model with one process.

`examination` decides when a step is checked, and gives the verdict. `trial` is the step of all
ranks on a few examples. `gathering` brings what ranks hold together. `alone` is the model of one
process.
"""
