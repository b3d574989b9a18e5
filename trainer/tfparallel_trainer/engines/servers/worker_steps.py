"""The functions that workers run: a training step, and a part of an evaluation.

The chief traces them once.

The variables live on the servers. A step reads them, computes the gradient of its own batch, and
applies it, while others do the same; nothing is locked. Three things follow:

* Counters are TensorFlow's own: Keras' add reads and then writes, so additions would be lost. The
  optimizer's counter, which learning-rate schedules read, is set from ours.
* Metrics are computed apart for each batch, and the chief adds their states up.
* Staleness is the number of steps that others applied between reading and applying.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract.job_file import Strategy
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import (
    checks,
    evaluate,
    gradient_sums,
    metric_sums,
    row_updates,
    tracing,
    train_step,
)
from tfparallel_trainer.objective.replica import Replica


def states(replica: Replica, contributions: np.ndarray) -> list[tf.Tensor]:
    """Split a vector into the states of the metrics."""
    shapes = [tuple(variable.shape) for variable in replica.model.metrics_variables]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    parts = np.split(contributions, ends) if shapes else []
    return [tf.constant(part.reshape(shape)) for part, shape in zip(parts, shapes, strict=True)]


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerFunctions:
    """The traced functions of a model whose variables live on servers.

    Each function returns one vector of float64. TensorFlow's coordinator fetches the tensors of a
    result one after the other, and gives the worker no new work until it has all.
    """

    strategy: Any
    module: user.Module
    replica: Replica
    applied_steps: Any
    """The variable that counts the steps that are applied."""
    max_staleness: int | None

    def training(self, spec: Any) -> Any:
        """Trace the training step, from its number and a batch's leaves to a vector.

        The vector has the index of the worker, whether the gradient was applied, and its staleness.
        Staleness is the number of other workers' steps between reading the weights and applying the
        gradient. Then come the loss, the loss of each output, and the metrics' states from this
        batch alone.
        """

        def run(step: tf.Tensor, leaves: Sequence[tf.Tensor]) -> Any:
            return self._step(step, nest.packed(spec, leaves))

        return self._traced(run, [tf.TensorSpec((), tf.int64), nest.leaves(spec)], "a step")

    def find_closures(self, training: Any) -> list[tracing.Closure]:
        """Find the variables outside the model that the traced training step reads."""
        counter = tracing.Closure(self.applied_steps, is_assigned=True)
        variables = [*tracing.variables_of(self.replica), counter]
        return tracing.find_closures(training.graph, variables)

    def evaluation(self, spec: Any) -> Any:
        """Trace the evaluation, from a batch's leaves to sums of the loss and metrics' states."""

        def run(leaves: Sequence[tf.Tensor]) -> Any:
            part = nest.packed(spec, leaves)
            isolated = metric_sums.isolate(
                self.replica, lambda: evaluate.sums_of(self.replica, part)
            )
            return _packed([isolated.result, *isolated.contributions])

        return self._traced(run, [nest.leaves(spec)], "the evaluation")

    def count(self) -> None:
        """Set the optimizer's counter to the number of steps. Workers write it in any order."""
        self.replica.optimizer.iterations.assign(self.applied_steps.read_value())

    def _traced(self, run: Any, signature: list[Any], what: str) -> Any:
        """Return a concrete function.

        With any other, the coordinator would examine the arguments of each call.
        """
        traced = tf.function(run, autograph=False, input_signature=signature)
        logger = tf.get_logger()
        before = logger.level
        logger.setLevel(
            "ERROR"
        )  # it would warn of operations that are only traced here, and run by workers
        try:
            with user.guard(self.module.path, f"tracing {what} raised"), self.strategy.scope():
                return traced.get_concrete_function()
        finally:
            logger.setLevel(before)

    def _step(self, step: tf.Tensor, part: Any) -> Any:
        replica = self.replica
        before = self.applied_steps.read_value()
        with tf.control_dependencies([before]):
            computed = train_step.compute_local_gradients(replica, part, step)
        values = [gradient_sums.values(array) for array in computed.gradients if array is not None]
        with tf.control_dependencies([computed.loss, *values]):
            staleness = self.applied_steps.read_value() - before
        if self.max_staleness is None:
            applied = self._apply(computed)
        else:
            applied = tf.cond(
                staleness <= self.max_staleness,
                lambda: self._apply(computed),
                lambda: tf.constant(False),
            )
        numbers = [_worker(), applied, staleness, computed.loss, computed.terms]
        return _packed([*numbers, *computed.isolated.contributions])

    def _apply(self, computed: train_step.LocalGradients) -> tf.Tensor:
        optimizer, variables = self.replica.optimizer, self.replica.model.trainable_variables
        for variable, value in computed.isolated.assigned:
            variable.assign(value)
        updated = row_updates.adapt(optimizer)
        self.strategy.run(lambda: updated.apply(_placed(computed.gradients), variables))
        optimizer.iterations.assign(self.applied_steps.assign_add(1))
        return tf.constant(True)


def _packed(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Pack tensors into one vector of float64, which holds counts below 2**53 exactly."""
    return tf.concat([tf.reshape(tf.cast(tensor, tf.float64), [-1]) for tensor in tensors], 0)


def _worker() -> tf.Tensor:
    """The index of the worker that runs this.

    A resource handle contains the device that created it.

    TensorFlow's experimental_get_current_worker_index would make the chief wait for a hung worker,
    and stop all threads of the chief.
    """
    handle = tf.raw_ops.AnonymousIteratorV3(output_types=[tf.int64], output_shapes=[()])
    handle_name = tf.raw_ops.IteratorToStringHandle(resource_handle=handle)
    after = tf.strings.split(handle_name, "/job:worker/replica:0/task:")[1]
    return tf.strings.to_number(tf.strings.split(after, "/")[0], tf.int64)


def check(replica: Replica, workers: int) -> None:
    """Refuse (UserCodeError) a model that several workers cannot update at once."""
    model = replica.model
    checks.refuse_phases(model, Strategy.PARAMETER_SERVER)
    if workers > 1:
        checks.refuse_stateful(model, "each worker takes other batches")
    trained = {id(weight) for weight in model.trainable_weights}
    assigned = replica.updates.weights(model) if replica.updates else []
    if workers > 1 and (lost := [weight for weight in assigned if id(weight) in trained]):
        raise errors.UserCodeError(
            f"A layer assigns {lost[0].path} while it trains, and of {workers} workers each would "
            "undo the steps that others have made meanwhile. Use one worker, or the strategy "
            "MultiWorkerMirrored.",
            function="build_model",
        )
    optimizer = model.optimizer
    if getattr(optimizer, "inner_optimizer", None) is not None:
        raise errors.UserCodeError(
            f"{type(optimizer).__name__} scales the loss (mixed_float16), and with parameter "
            'servers each worker would change the scale of the others: use "mixed_bfloat16".',
            function="compile_model",
        )
    if optimizer.gradient_accumulation_steps:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} has gradient_accumulation_steps="
            f"{optimizer.gradient_accumulation_steps}, and with parameter servers workers would "
            "mix their gradients: remove it.",
            function="compile_model",
        )
    if optimizer.use_ema:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} has use_ema=True, and with parameter "
            "servers averages of the weights would lose updates: remove it.",
            function="compile_model",
        )
    for variable in model.metrics_variables:
        if variable.aggregation not in metric_sums.SUMMED:
            raise errors.UserCodeError(
                f"The metric variable {variable.path} is combined by {variable.aggregation!r}; "
                "with parameter servers the chief can only add metrics up: remove this metric.",
                function="compile_model",
            )


def _placed(computed: Sequence[Any]) -> list[Any]:
    """Copy gradients to the worker's device, where Keras then reduces them."""
    return [
        None
        if gradient is None
        else tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
        for gradient in computed
    ]
