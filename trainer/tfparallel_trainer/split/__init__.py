"""Model split: a Keras model as a graph of our own, cut into stages, and their order of work."""
