"""The memory of a container, and its growth after the container ran out of it."""

import math
from typing import Any

from tfparallel_operator.api import policies, quantities

_MEBIBYTE = 1024**2


def grow(container: dict[str, Any], policy: policies.OutOfMemory, times: int) -> None:
    """Raise the memory request and limit of a container, if it has them, in place."""
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        amounts = resources.get(kind) or {}
        if "memory" in amounts:
            amounts["memory"] = grown(str(amounts["memory"]), policy, times)


def grown(quantity: str, policy: policies.OutOfMemory, times: int) -> str:
    """Return a quantity after it has grown some times, in whole Mi, and never less than before."""
    before, most = parse(quantity), parse(policy.max_memory)
    if before is None or most is None or before >= most:
        return quantity
    # Beyond a thousandfold nothing is left to grow; the power itself must not overflow.
    factor = (1 + policy.growth_percent / 100) ** min(times, 100)
    size = math.ceil(before * factor / _MEBIBYTE) * _MEBIBYTE
    return policy.max_memory if size >= most else f"{size // _MEBIBYTE}Mi"


def parse(quantity: str) -> int | None:
    """Return the bytes of a quantity such as 1.5Gi, rounded up; None: it is invalid."""
    number = quantities.parse(quantity)
    return None if number is None else math.ceil(number)
