"""Quantities of resources, as Kubernetes writes them: 500m, 1.5Gi, 1e3."""

import fractions
import re
from collections.abc import Iterator

from tfparallel_operator.api import pods, problems

_UNITS: dict[str, fractions.Fraction] = {
    **{unit: fractions.Fraction(1000**power) for power, unit in enumerate(("", *"kMGTPE"))},
    **{f"{unit}i": fractions.Fraction(1024 ** (1 + n)) for n, unit in enumerate("KMGTPE")},
    **{unit: fractions.Fraction(1, 1000 ** (1 + n)) for n, unit in enumerate("mun")},
}
_QUANTITY = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+))([eE][+-]?[0-9]{1,3}|[kKMGTPEmun]?i?)")
"""A decimal number and a unit or an exponent."""


def parse(quantity: str) -> fractions.Fraction | None:
    """Return the number that a quantity stands for; None when it is none."""
    parts = _QUANTITY.fullmatch(quantity)
    if parts is None:
        return None
    number, unit = parts.groups()
    if unit in _UNITS:
        return fractions.Fraction(number) * _UNITS[unit]
    return fractions.Fraction(number + unit) if unit[-1:].isdecimal() else None


def find_problems(place: problems.Place, resources: pods.Resources) -> Iterator[problems.Problem]:
    """Yield each quantity that the API server refuses.

    Args:
        place: that of the resources.
        resources: of a container.
    """
    requests, limits = resources.requests or {}, resources.limits
    for kind, quantities in (("requests", requests), ("limits", limits)):
        for name, quantity in quantities.items():
            if quantity is not None and parse(str(quantity)) is None:
                yield problems.Problem(
                    (*place, kind, name),
                    f"received {quantity!r}; write a quantity, such as 4Gi, 2 or 500m",
                )
    for name in requests.keys() & limits.keys():
        request, limit = requests[name], limits[name]
        asked, most = parse(str(request)), parse(str(limit))
        if asked is not None and most is not None and asked > most:
            yield problems.Problem(
                (*place, "requests", name),
                f"received {request!r}, which is above the limit {limit!r}; lower the request, or"
                " raise the limit",
            )
