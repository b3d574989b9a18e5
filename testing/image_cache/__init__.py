"""The images for the tests: built where nothing can be pulled, and kept in a cache."""
