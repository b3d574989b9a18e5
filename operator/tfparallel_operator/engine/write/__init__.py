"""What the engine writes, and how it writes it conditionally.

- `apply`, `merge`: a decision's steps in order. `writes`: several at once, and their outcome.
- `creations`, `priorities`, `refusals`: what is created, and why something is not.
- `recorder`: Events. `publisher`: reports of progress in a job's status.
- `context`: what all that acts on jobs shares, and the leave to write.
"""
