"""How long ago something happened, in kubectl's manner."""

import datetime


def age(moment: datetime.datetime | None, now: datetime.datetime) -> str:
    """Return a duration in kubectl's manner: 45s, 12m, 3h, 8d."""
    if moment is None:
        return ""
    seconds = max(0, int((now - moment).total_seconds()))
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86_400}d"
