"""The progress endpoint: HTTPS with a certificate authority of its own, and token reviews."""
