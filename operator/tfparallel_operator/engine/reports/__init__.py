"""The progress endpoint: HTTPS with certificates of its own CA, tokens and their reviews."""
