"""How a script tells when something happened."""

import json
import time


def tell(event: str, **facts: object) -> None:
    """Write a line: what happened now."""
    print(json.dumps({"event": event, "time": time.time(), **facts}), flush=True)
