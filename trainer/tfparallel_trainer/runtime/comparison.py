"""Whether the models of all devices and processes are the same in what is no variable.

Variables are shared from the first replica; a vocabulary or a constant is each process' own.
"""

from collections.abc import Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.comms import agreement, collectives, tasks
from tfparallel_trainer.objective import likeness


def check(
    cluster: tasks.Cluster,
    device: str,
    models: Sequence[likeness.Digests],
    traced: likeness.Digests,
) -> None:
    """Refuse (UserCodeError) models that differ; all processes call it alike.

    Args:
        cluster: of the processes.
        device: one of this process, by which it talks to others.
        models: the layers of the model of each device of this process.
        traced: what a trace of the first one has.
    """
    here = _find_device(models)
    difference = _find_process(cluster, device, {**models[0], **traced}) or here
    if difference:
        raise errors.UserCodeError(
            f"{difference}. Let build_model and compile_model give the same model each time: sort "
            "what comes from a set, and let random constants follow from a seed."
        ).on_every_process()


def _find_process(cluster: tasks.Cluster, device: str, parts: likeness.Digests) -> str | None:
    """Say in which part a process differs from the first one; the same everywhere."""
    compare, programs = agreement.find_difference, collectives.Program
    sizes = {"the number of layers": len(parts)}
    whole = {"the model": likeness.digest(map(str, parts.values()))}
    difference = compare(cluster, device, programs.COMPARE_SIZES, sizes)
    if difference is None and compare(cluster, device, programs.COMPARE_MODELS, whole):
        difference = compare(cluster, device, programs.COMPARE_PARTS, parts)
    return difference


def _find_device(models: Sequence[likeness.Digests]) -> str | None:
    """Say in which layer the models of two devices of this process differ."""
    first = models[0]
    for model in models[1:]:
        for what, value in model.items():
            if first.get(what) != value:
                return f"The models of two devices differ in {what}"
    return None
