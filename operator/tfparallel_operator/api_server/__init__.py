"""The API server as the operator and the command reach it: credentials, requests, lists."""
