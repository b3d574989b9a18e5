"""Memory that a container asks for, and how it grows after it ran out of it."""

import math
from typing import Any

from tfparallel_operator.api import policies

_UNITS: dict[str, int] = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T"))},
    **{unit: 1024**power for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti"))},
}
_MEBIBYTE = 1024**2


def grow(container: dict[str, Any], policy: policies.OutOfMemory, times: int) -> None:
    """Raise a container's request and limit of memory, where it has them, in place.

    A quantity that is written in an unusual way, such as 1e9, is left as it is.
    """
    resources = container.get("resources") or {}
    for kind in ("requests", "limits"):
        quantities = resources.get(kind) or {}
        if "memory" in quantities:
            quantities["memory"] = grown(str(quantities["memory"]), policy, times)


def grown(quantity: str, policy: policies.OutOfMemory, times: int) -> str:
    """Return a quantity after some growths, in whole Mi; never less than it was."""
    before, most = parse(quantity), parse(policy.max_memory)
    if before is None or most is None or before >= most:
        return quantity
    # Beyond a thousandfold nothing is left to grow; the power itself must not overflow.
    factor = (1 + policy.growth_percent / 100) ** min(times, 100)
    wanted = math.ceil(before * factor / _MEBIBYTE) * _MEBIBYTE
    return policy.max_memory if wanted >= most else f"{wanted // _MEBIBYTE}Mi"


def parse(quantity: str) -> int | None:
    """Return the bytes of a quantity such as 512Mi; None when it is written in another way."""
    digits = quantity.rstrip("kKMGTi")
    unit = quantity[len(digits) :]
    if not digits.isdecimal() or unit not in _UNITS:
        return None
    return int(digits) * _UNITS[unit]
