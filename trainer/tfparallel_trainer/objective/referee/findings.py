"""What a check has found: which quantities differ, of what kind the fault is, and what to do."""

import enum
from collections.abc import Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.contract import verification
from tfparallel_trainer.objective.referee import observations

_KIND = verification.Quantity
_SHOWN = 3
_ERROR_LENGTH = 100
RANDOM = "the same step gives different numbers each time, as with tf.random or NumPy in a layer"
"""Why a step cannot be compared."""
_COPIES = "all but the copies of each variable, which are alike"


class Fault(enum.Enum):
    """The likely kind of a fault, with its remedy."""

    STATE = (
        "its value differs between replicas, as it does if only the chief changes it.",
        "Keep what a callback changes in a weight of the model or in the optimizer, which all "
        "replicas share",
    )
    MODEL = (
        "the model differs between replicas or processes on the same examples.",
        "Make build_model and compile_model return the same everywhere: sort what comes from a "
        "set, and draw constants from a seed",
    )
    TOGETHER = (
        "the loss, or a layer while it trains, depends on which examples are in a batch together.",
        "Make the loss a mean over examples and let each layer treat examples one by one, or train "
        "on one device",
    )
    LOSS = (
        "the trainer computes the loss differently from Keras, for example because a Loss "
        "overrides __call__.",
        "Move the computation to the loss's method call, which returns a value for each example",
    )
    ASSIGNED = (
        "a layer assigns it in its forward pass, from the examples of its replica, or not at all "
        "on a replica without examples.",
        "Compute the assigned value from the weights alone and make batches divide evenly, or "
        "train on one device",
    )
    UPDATE = (
        "the optimizer updates it differently, as it does if it tells variables apart by path or "
        "identity, or decays a weight without a gradient.",
        "Use an optimizer that treats all weights alike, or train with MultiWorkerMirrored",
    )
    DIVIDED = (
        "the layers that the mesh divides differ from those of the whole model.",
        "Train with MultiWorkerMirrored, and report the layer of the first name",
    )
    METRIC = (
        "the metric is not a sum over examples.",
        "Let update_state only add to its variables, or leave the metric out of model.compile",
    )


def kind_of(
    differing: Sequence[observations.ObservedQuantity], *, between_ranks: bool, undivided: bool
) -> Fault:
    """The likely kind of a fault.

    Args:
        differing: what differs, at least one quantity.
        between_ranks: whether it differs between ranks that compute the same.
        undivided: whether it also differs when one rank computes the step as it is.
    """
    kinds = {quantity.kind for quantity in differing}
    if between_ranks:
        return Fault.MODEL
    if kinds & {_KIND.LOSS, _KIND.GRADIENTS}:
        return Fault.LOSS if undivided else Fault.TOGETHER
    if kinds == {_KIND.METRICS}:
        return Fault.METRIC
    return Fault.ASSIGNED


def error(
    fault: Fault, step: int, differing: Sequence[observations.ObservedQuantity], largest: float
) -> errors.VerificationError:
    """The error that ends the job on every process."""
    cause, remedy = fault.value
    return errors.VerificationError(
        f"Step {step} differs from one process by {largest:.2g} in {_names(differing)}: "
        f'{cause} {remedy} (trainer.verify: "Off" trains without this check).'
    ).on_every_process()


def describe_failure(error: Exception) -> str:
    """Say why one process cannot compute a step, on one line."""
    text = " ".join(str(error).split())[:_ERROR_LENGTH]
    return f"one process cannot compute the step ({type(error).__name__}: {text})"


def incomparable(step: int, obstacle: str, *, has_copies: bool) -> verification.Check:
    """The check of a step that one process cannot compute, of which only copies were compared."""
    return verification.Check(step, {}, [obstacle, _COPIES] if has_copies else [obstacle])


def training_differs(step: int) -> errors.VerificationError:
    """The error of replicas that train other weights."""
    return errors.VerificationError(
        f"At step {step} some replicas train other weights than the first one, for example because "
        "a callback has frozen some on the chief alone. Set trainable before model.compile, and "
        'train in two runs if it changes (trainer.verify: "Off" trains without this check).'
    ).on_every_process()


def _names(differing: Sequence[observations.ObservedQuantity]) -> str:
    """The quantities for people: "the gradients of a, b and 3 more"."""
    kinds = [kind for kind in _KIND if any(quantity.kind is kind for quantity in differing)]
    shown = []
    for kind in kinds[:2]:
        names = [quantity.name for quantity in differing if quantity.kind is kind and quantity.name]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        of = f" ({', '.join(names[:_SHOWN])}{more})" if names else ""
        shown.append(f"{kind}{of}")
    return " and ".join(shown)
