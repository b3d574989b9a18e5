"""Reads what people write on the command line of a plan: bytes and meshes."""

from collections.abc import Sequence

from tfparallel_operator.api import load, quantities
from tfparallel_trainer.contract import plan

AUTO = "auto"
"""As a mesh: the planner chooses all axes."""


def size(written: str) -> int:
    """Read bytes, such as 8GiB, 8Gi or 500MB.

    Raises:
        SpecError: it has another form.
    """
    count = quantities.parse(written.replace(" ", "").removesuffix("B"))
    if count is None or count < 1:
        raise load.SpecError(f"--memory {written}: write bytes, such as 8GiB or 500MB")
    return int(count)


def mesh(written: str) -> dict[str, int]:
    """Read axes with their degrees, such as data=2,stage=-1.

    Raises:
        SpecError: it has another form.
    """
    axes: dict[str, int] = {}
    for part in written.split(","):
        name, _, degree = part.partition("=")
        name = name.strip()
        if name in axes or name not in plan.Axes.model_fields:
            axis_names = ", ".join(plan.Axes.model_fields)
            raise load.SpecError(f"--mesh {written}: {name!r}; give each of {axis_names} once")
        try:
            axes[name] = int(degree)
        except ValueError as error:
            raise load.SpecError(
                f"--mesh {written}: write axes with numbers, such as data=2,stage=2, or -1 for "
                "the remaining devices"
            ) from error
    return axes


def pods(devices: int, pod_count: int | None) -> tuple[int, int]:
    """Divide devices among pods; gives the pods and the devices of each.

    Raises:
        SpecError: they cannot be divided evenly.
    """
    count = devices if pod_count is None else pod_count
    if devices % count:
        divisors = [divisor for divisor in range(1, devices + 1) if devices % divisor == 0]
        raise load.SpecError(
            f"--pods {count}: {devices} devices cannot be divided evenly among {count} pods; give "
            f"one of {_listed(divisors)}"
        )
    return count, devices // count


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
