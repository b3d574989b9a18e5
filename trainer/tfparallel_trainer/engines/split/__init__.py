"""The model is divided: a graph of our own, cut into stages, each layer over ranks."""
