"""`tfparallel compare`: one model trained synchronously and asynchronously, and what that shows."""
