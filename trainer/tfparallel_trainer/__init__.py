"""Trains Keras 3 models on many devices and processes; knows TensorFlow and no Kubernetes."""
