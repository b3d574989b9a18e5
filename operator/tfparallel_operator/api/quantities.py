"""Quantities of resources, as Kubernetes writes them: 500m, 1.5Gi, 1e3."""

import fractions
import math
import re
from collections.abc import Iterator
from typing import Any

from tfparallel_operator.api import pods, problems

_UNITS: dict[str, fractions.Fraction] = {
    **{unit: fractions.Fraction(1000**power) for power, unit in enumerate(("", *"kMGTPE"))},
    **{f"{unit}i": fractions.Fraction(1024 ** (1 + n)) for n, unit in enumerate("KMGTPE")},
    **{unit: fractions.Fraction(1, 1000 ** (1 + n)) for n, unit in enumerate("mun")},
}
_QUANTITY = re.compile(
    r"([-+]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]*|)([eE][+-]?[0-9]{1,3}|[kKMGTPEmun]?i?)"
)
"""A decimal number and a unit or an exponent; without digits, Kubernetes reads most units as 0."""

LONGEST = 64
"""Maximum length of a quantity. The API server accepts longer ones, which are useless."""

_NEEDS_DIGITS = ("Pi", "Ei")
_MOST = fractions.Fraction(2**63 - 1)
"""The value that Kubernetes uses for larger numbers with a binary unit."""


def parse(quantity: str) -> fractions.Fraction | None:
    """Return the value of a quantity; None: it is invalid or too long."""
    if not 0 < len(quantity) <= LONGEST:
        return None
    parts = _QUANTITY.fullmatch(quantity)
    if parts is None:
        return None
    sign, digits, unit = parts.groups()
    has_digits = digits not in ("", ".")
    if not has_digits and unit in _NEEDS_DIGITS:
        return None
    number = f"{sign}{digits if has_digits else 0}"
    if unit in _UNITS:
        exact = fractions.Fraction(number) * _UNITS[unit]
        return min(exact, _MOST) if unit.endswith("i") else exact
    return fractions.Fraction(number + unit) if unit[-1:].isdecimal() else None


def parse_count(text: str) -> int | None:
    """Return the value of decimal digits; None: the text is not a number, or too long."""
    return int(text) if len(text) <= LONGEST and text.isdecimal() else None


def find_problems(
    location: problems.Place, resources: pods.Resources
) -> Iterator[problems.Problem]:
    """Yield a problem for each quantity that the API server refuses.

    Args:
        place: that of the resources.
        resources: of a container.
    """
    requests, limits = resources.requests or {}, resources.limits
    for kind, quantities in (("requests", requests), ("limits", limits)):
        for name, quantity in quantities.items():
            number = _number(quantity)
            if number is None or number < 0:
                yield problems.Problem(
                    (*location, kind, name),
                    f"received {problems.show(quantity)}; write a quantity, such as 4Gi, 2 or 500m",
                )
    for name in requests.keys() & limits.keys():
        request, limit = requests[name], limits[name]
        asked, most = _number(request), _number(limit)
        if asked is None or most is None:
            continue
        if math.ceil(1000 * asked) > math.ceil(1000 * most):  # The API server compares these.
            yield problems.Problem(
                (*location, "requests", name),
                f"received {request!r}, which is above the limit {limit!r}; lower the request, or"
                " raise the limit",
            )


def _number(value: Any) -> fractions.Fraction | None:
    """Return the value of a quantity in YAML; null is 0."""
    return parse("0" if value is None else str(value).strip())
