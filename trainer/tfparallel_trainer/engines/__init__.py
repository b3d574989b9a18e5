"""What makes steps. No engine imports another; `engine` says what the loop asks of each."""
