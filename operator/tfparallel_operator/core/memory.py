"""Memory that a container asks for, and how it grows after it ran out of it."""

import fractions
import math
import re
from typing import Any

from tfparallel_operator.api import policies

_UNITS: dict[str, fractions.Fraction] = {
    **{unit: fractions.Fraction(1000**power) for power, unit in enumerate(("", *"kMGTPE"))},
    **{f"{unit}i": fractions.Fraction(1024 ** (1 + n)) for n, unit in enumerate("KMGTPE")},
    **{unit: fractions.Fraction(1, 1000 ** (1 + n)) for n, unit in enumerate("mun")},
}
_QUANTITY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,3}|[kKMGTPEmun]?i?)")
"""As Kubernetes writes it: a decimal number and a unit or an exponent."""
_MEBIBYTE = 1024**2


def grow(container: dict[str, Any], policy: policies.OutOfMemory, times: int) -> None:
    """Raise a container's request and limit of memory, where it has them, in place."""
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
    """Return the bytes of a quantity such as 1.5Gi, rounded up; None when it is none."""
    parts = _QUANTITY.fullmatch(quantity)
    if parts is None:
        return None
    number, unit = parts.groups()
    if unit in _UNITS:
        return math.ceil(fractions.Fraction(number) * _UNITS[unit])
    return math.ceil(fractions.Fraction(number + unit)) if unit[-1:].isdecimal() else None
