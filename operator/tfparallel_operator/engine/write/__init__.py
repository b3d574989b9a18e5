"""What the engine writes, and how it writes it conditionally.

- `apply`, `merge`, `priorities`, `refusals`: a decision's steps in order, and why one is refused.
- `recorder`: Events. `publisher`: reports of progress in a job's status.
- `context`: what all that acts on jobs shares, and the leave to write.
"""
