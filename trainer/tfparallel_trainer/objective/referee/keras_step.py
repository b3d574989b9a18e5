"""The step of one process on a small batch, in the plainest way: Keras' own loss, one tape.

It applies the gradients of the ranks, not its own: Adam makes a rounding as large as a gradient.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src.trainers import compile_utils  # not in the public API

from tfparallel_trainer.objective import metric_sums, phases, train_step, trial
from tfparallel_trainer.objective.referee import draws, trials
from tfparallel_trainer.objective.replica import Replica


def trace(replica: Replica, spec: Any, gradients: Sequence[Sequence[Any]] | None) -> Any:
    """Trace what takes the step's number, a small batch, and gradients such as these.

    Without them it applies its own, and draws for each example as a worker does. The concrete
    function gives a `trials.RankOutcome` as a tuple, on the device of the replica.
    """

    def run(step: tf.Tensor, whole: Any, totals: Any) -> Any:
        losses, computed = [], []
        with contextlib.nullcontext() if totals is None else draws.alike():
            for index, phase in enumerate(replica.computations):
                drawing = train_step.seeded_from_step(replica, step, alike=True, goes_on=index > 0)
                with drawing, tf.GradientTape() as tape:
                    loss = _loss(replica, phase, whole)
                    scaled = phase.optimizer.scale_loss(loss)
                losses.append(loss)
                gradients_alone = tape.gradient(
                    scaled, [variable.value for variable in phase.variables]
                )
                computed.append(gradients_alone)
                applied = gradients_alone if totals is None else totals[index]
                together = zip(gradients_alone, applied, phase.variables, strict=True)
                with warnings.catch_warnings():  # training has warned of weights without a gradient
                    warnings.filterwarnings("ignore", "Gradients do not exist", UserWarning)
                    phase.optimizer.apply([_applied(*pair) for pair in together], phase.variables)
        states = [tf.convert_to_tensor(variable) for variable in replica.model.metrics_variables]
        return (
            tf.add_n([tf.cast(loss, tf.float64) for loss in losses]),
            [
                [trials.split(gradient) for gradient in phase_gradients]
                for phase_gradients in computed
            ],
            metric_sums.tensors(replica, states),
        )

    def run_on_device(step: tf.Tensor, whole: Any, totals: Any) -> Any:
        with tf.device(replica.device):
            return run(step, whole, totals)

    return tf.function(run_on_device, autograph=False).get_concrete_function(
        tf.TensorSpec((), tf.int64),
        spec,
        None
        if gradients is None
        else [[_spec(phase_gradients) for phase_gradients in phase] for phase in gradients],
    )


def _applied(gradient: Any, gradient_of_ranks: Any, variable: Any) -> Any:
    """The gradient of the ranks, as this step applies it: its own where that is sparse or none."""
    joined = trials.unsplit(gradient_of_ranks, variable)
    is_sparse = isinstance(gradient, tf.IndexedSlices)
    return gradient if gradient is None or (is_sparse and tf.is_tensor(joined)) else joined


def _spec(gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, (tuple, list)):
        values, rows = gradient
        return (
            tf.TensorSpec((None, *values.shape[1:]), values.dtype),
            tf.TensorSpec((None,), rows.dtype),
        )
    return tf.TensorSpec(gradient.shape, gradient.dtype)


def _loss(replica: Replica, phase: phases.Computation, whole: Any) -> tf.Tensor:
    """The loss of a batch as Keras' fit has it; feeds the metrics."""
    if isinstance(phase, phases.Custom):
        values = phase.losses(whole, training=True).values()
        return tf.add_n([tf.reduce_mean(value) for value in values])
    model, (x, y, weight) = replica.model, whole
    y_pred = model(x, training=True)
    with _own_loss(model):
        loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True)
    model.compute_metrics(x, y, y_pred, weight)
    return loss


@contextlib.contextmanager
def _own_loss(model: Any) -> Iterator[None]:
    """Let the model compute its compiled loss by an equal one.

    The first use would make metrics of the losses of several outputs, which the model then has.
    """
    before = model._compile_loss  # no public way leads to it
    if before is not None:
        model._compile_loss = type(before)(
            before._user_loss, before._user_loss_weights, output_names=before.output_names
        )
    try:
        with trial.substituted(compile_utils.metrics_module, {"Mean": _NoMean}):
            yield
    finally:
        model._compile_loss = before


class _NoMean:
    """Stands for the mean of a loss that nobody reads."""

    def __init__(self, name: str) -> None:
        self.name = name

    def update_state(self, *_: Any, **__: Any) -> None:
        """Do nothing."""
