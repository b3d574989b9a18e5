"""Whether the models of all devices and processes agree in everything but variables.

All replicas get the variables of the first one. But each process computes vocabularies and
constants by itself.
"""

from collections.abc import Sequence

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import agreement, collectives
from tfparallel_trainer.objective import likeness

ALIKE = (
    "Make build_model and compile_model return the same model each time: sort what comes from a "
    "set, and draw random constants from a seed."
)
FUNCTION = (
    "Keras' description of the model does not have all of it: give fit a function that builds and "
    "compiles the model instead."
)

Descriptions = tuple[Sequence[likeness.Digests], Sequence[likeness.Digests]]
"""The layers of each device of a process, and their traces: of the first device, of all, or of
none.
"""


def check(cluster: tasks.Cluster, device: str, models: Descriptions, remedy: str) -> None:
    """Refuse (UserCodeError) models that differ.

    All processes call it alike. `device` is a device of this process, which exchanges the digests.
    """
    layers, traced = models
    difference = _find_device(layers)
    if len(traced) == len(layers):
        difference = difference or _find_device(traced)
    first = {**layers[0], **(traced[0] if traced else {})}
    difference = _find_process(cluster, device, first) or difference
    if difference:
        raise errors.UserCodeError(f"{difference}. {remedy}").on_every_process()


def _find_process(cluster: tasks.Cluster, device: str, parts: likeness.Digests) -> str | None:
    """Describe how a process differs from the first one. All processes return the same."""
    compare, programs = agreement.find_difference, collectives.Program
    sizes = {"the number of layers": len(parts)}
    whole = {"the model": agreement.digest("\n".join(map(str, parts.values())))}
    difference = compare(cluster, device, programs.COMPARE_SIZES, sizes)
    if difference is None and compare(cluster, device, programs.COMPARE_MODELS, whole):
        difference = compare(cluster, device, programs.COMPARE_PARTS, parts)
    return difference


def _find_device(models: Sequence[likeness.Digests]) -> str | None:
    """Describe how the models of two devices differ, apart from names that Keras numbers."""
    first = models[0] if models else {}
    for model in models[1:]:
        if len(model) != len(first):
            return "The models of two devices differ in the number of layers"
        for (what, value), other in zip(first.items(), model.values(), strict=True):
            if value != other:
                return f"The models of two devices differ in {what}"
    return None
