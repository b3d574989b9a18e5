"""The custom resource: its types, its names, its schema. Plain values, no I/O."""
