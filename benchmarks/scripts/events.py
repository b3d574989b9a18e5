"""Events that a script writes for the process that started it."""

import json
import time


def write(event: str, **facts: object) -> None:
    """Write a line: what happened now."""
    print(json.dumps({"event": event, "time": time.time(), **facts}), flush=True)
