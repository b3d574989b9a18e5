"""Builds the images of the Dockerfile where nothing can be pulled, and keeps them in the cache."""
