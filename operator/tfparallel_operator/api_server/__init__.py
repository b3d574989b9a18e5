"""Access to the API server for the operator and the command: credentials, requests, lists."""
