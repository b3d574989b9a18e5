"""How a Keras model becomes a graph of our own, without its weights, and how that runs."""
