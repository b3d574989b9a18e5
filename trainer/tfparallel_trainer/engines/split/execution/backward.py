"""Executes the forward and backward passes of one rank's stage, and completes its gradients."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import nest
from tfparallel_trainer.engines.split.execution import (
    gradient_sum,
    loss_head,
    microbatch_function,
    microbatches,
    rank_model,
    rank_transport,
    stage_worker,
    update,
)
from tfparallel_trainer.engines.split.execution.segment_pass import Counted, Gradients, SegmentPass
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule, segments
from tfparallel_trainer.engines.split.pipeline.partition import Partition
from tfparallel_trainer.objective import checks, gradient_sums, loss


class TrainingWorker(stage_worker.StageWorker):
    """A rank's work in a step."""

    def __init__(
        self,
        rank: rank_model.RankModel,
        partition: Partition,
        workload: stage_worker.Workload,
        division: loss_head.LossDivision,
    ) -> None:
        super().__init__(rank, partition, workload, training=True)
        self._division = division
        self._batch_denominators: tf.Tensor | None = None
        self._forward_results: dict[int, stage_worker.ForwardResult] = {}
        self._segments = partition.segments(rank.stage)
        self._sums = {key: gradient_sum.GradientSum() for key in rank.trained}
        self._remaining = len(self._rows)
        """How many backward passes are to be made."""
        self.gradients: dict[str, Any] = dict.fromkeys(rank.trained)
        """Over all microbatches, once the last backward pass is made."""
        self.statistics: dict[str, tf.Tensor] = {}
        with tf.device(rank.device):
            self.scale = rank.optimizer.scale()
        shape = (partition.microbatches, len(schedule.Pass), 2)
        with tf.device(rank.clock.processor):
            self._moments = tf.zeros(shape, tf.float64)
            """Begin and end of what it does, by microbatch and pass; the rest of a step it waits.
            """

    def set_batch_denominators(self, denominators: tf.Tensor) -> None:
        """Divide the losses of later backward passes by denominators over the whole batch."""
        self._batch_denominators = denominators

    @property
    def has_all(self) -> bool:
        """Whether it has the gradients of the whole model, once they are summed over ranks."""
        return self._partition.mesh.only_data and not self._partition.shards_optimizer

    def work(self, action: schedule.Action) -> None:
        """Make the forward or the backward pass of a microbatch."""
        begin = self._read_clock(begins_action=True)
        with self.ordering.compute() as results:
            if action.work is schedule.Pass.FORWARD:
                results += self._forward(action).tensors
            else:
                results += self._backward(action)
        end = self._read_clock()
        position = [action.microbatch + self._iteration, list(schedule.Pass).index(action.work)]
        with tf.device(self.rank.clock.processor):
            self._moments = tf.tensor_scatter_nd_update(
                self._moments, [tf.stack(position)], [tf.stack([begin, end])]
            )

    def begin_loop(self, iterations: int) -> None:
        """Prepare for a loop whose iterations repeat the latest actions."""
        for total in self._sums.values():
            total.begin_loop(iterations)

    def end_loop(self, iterations: int, carried: Mapping[stage_worker.Slot, Any]) -> None:
        """Continue with the loop-carried tensors of the last iteration."""
        super().end_loop(iterations, carried)
        for total in self._sums.values():
            total.end_loop()
        self._remaining -= iterations - 1
        if not self._remaining:
            with self.ordering.compute() as results:
                results += self._complete_gradients()

    def carried(self) -> dict[stage_worker.Slot, Any]:
        """What later actions need of earlier ones: tensors and arrays."""
        constant = {
            tensor.ref() for key, tensor in self.values.items() if key not in self.statistics
        }
        carried = super().carried()
        carried |= {
            ("kept", microbatch, position): tensor
            for microbatch, result in self._forward_results.items()
            for position, tensor in enumerate(result.kept)
            if tensor.ref() not in constant
        }
        carried |= {("statistic", key): tensor for key, tensor in self.statistics.items()}
        carried |= {
            ("sum", key, position): tensor
            for key, total in self._sums.items()
            for position, tensor in enumerate(total.carried())
        }
        return carried | {("moments",): self._moments}

    def assigned(self, key: str) -> Any:
        """A weight as the forward passes have left it."""
        return self.statistics.get(key, self.rank.weights[key].value)

    def penalty(self, weights: Mapping[str, Any]) -> tf.Tensor:
        """The regularisation of weights, by key: a scalar float64."""
        parts = [self.rank.weights[key].regularizer(value) for key, value in weights.items()]
        return tf.add_n(
            [tf.zeros((), tf.float64), *(tf.cast(penalty, tf.float64) for penalty in parts)]
        )

    def timings(self) -> tf.Tensor:
        """What the rank adds to the timings of a step, as `step_timing.StepTiming` takes it.

        The seconds in which each stage computes are means over its ranks. The moments are those of
        the first of them: float64 [stages + stages * microbatches * MOMENTS].
        """
        mesh = self._partition.mesh
        tells = float(self.rank.is_first and self.rank.data == 0)
        with tf.device(self.rank.clock.processor):
            begins, ends = tf.unstack(self._moments, axis=-1)
            seconds = tf.reduce_sum(ends - begins) * (mesh.stage / mesh.size)
            one_hot = tf.one_hot(self.rank.stage.index, mesh.stage, dtype=tf.float64)
            of_all = tells * one_hot[:, tf.newaxis] * tf.reshape(self._moments, (-1,))
            return tf.concat([seconds * one_hot, tf.reshape(of_all, (-1,))], 0)

    def _restore(self, carried: Mapping[stage_worker.Slot, Any]) -> None:
        super()._restore(carried)
        for microbatch, result in self._forward_results.items():
            self._forward_results[microbatch] = result.with_kept(
                [
                    carried.get(("kept", microbatch, position), tensor)
                    for position, tensor in enumerate(result.kept)
                ]
            )
        self._change_weights({key: carried["statistic", key] for key in self.statistics})
        for key, total in self._sums.items():
            total.restore(
                [carried["sum", key, position] for position in range(len(total.carried()))]
            )
        self._moments = carried["moments",]

    def _renumber(self, offset: int) -> None:
        super()._renumber(offset)
        self._forward_results = {
            microbatch + offset: result for microbatch, result in self._forward_results.items()
        }

    def _change_weights(self, changed: Mapping[str, tf.Tensor]) -> None:
        """Take what a forward pass has assigned to weights."""
        # What the examples do not decide is assigned once in a step, not by each microbatch.
        assigned = self.effects.assigned
        self.values |= {key: value for key, value in changed.items() if key not in assigned}
        self.statistics |= changed

    def _read_clock(self, *, begins_action: bool = False) -> tf.Tensor:
        """The time at which this rank has done everything before, by the clock of its host."""
        with self.ordering.compute(begins_action=begins_action) as results:
            results.append(self.rank.clock.read())
        return results[0]

    def _forward(self, action: schedule.Action) -> stage_worker.ForwardResult:
        work, arguments = self._prepare(action)
        compute = functools.partial(self._compute, work, arguments)
        computation = self._functions.call(action.microbatch, compute, nest.leaves(arguments))
        result = self._take(action.microbatch, work, computation)
        self._change_weights(result.changed)
        self._forward_results[action.microbatch] = result
        return result

    def _compute(
        self,
        work: stage_worker.StageWork,
        template: microbatches.Arguments,
        tensors: Sequence[tf.Tensor],
    ) -> microbatch_function.Computation:
        self.rank.clock.bind()
        arguments = nest.packed(template, tensors)
        computed, variables = self._tensors(arguments), self._variables(arguments)
        passes = []
        changed: dict[str, Any] = {}
        for segment in self._segments:
            compute = functools.partial(
                self._run_segment, work, segment, arguments, dict(computed), dict(variables)
            )
            segment_pass = SegmentPass(
                compute,
                {number: computed[number] for number in segment.inputs if self._is_watched(number)},
                {key: variables[key] for key in self.gradients},
                segment.outputs,
                recomputes=self._recomputes(segment),
            )
            passes.append(segment_pass)
            part = segment_pass.part
            computed |= {number: part.tensors[number] for number in segment.outputs}
            variables |= part.changed
            changed |= part.changed
        terms = stage_worker.join_terms(
            [counted for segment_pass in passes for counted in segment_pass.terms]
        )
        self._check_terms(terms)

        def pullback(cotangents: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            self.rank.clock.bind()
            gradients = self._go_back(passes, terms, cotangents)
            results = [
                gradients.tensors.get(transfer.tensor, tf.zeros_like(computed[transfer.tensor]))
                for transfer in self._watched
            ]
            for key in self.gradients:
                gradient = gradients.weights.get(key)
                work.kinds[key] = self.rank.kind(key, gradient)
                results += gradient_sum.tensors_of(work.kinds[key], gradient)
            return results

        targets = [
            *(fraction.numerator for _, fraction in terms),
            *(computed[transfer.tensor] for transfer in self._with_gradient),
        ]
        return microbatch_function.Computation(
            self._results(
                work,
                computed,
                terms,
                {key: tensor for key, tensor in changed.items() if key in self.values},
            ),
            pullback if self._watched or self.gradients else None,
            [tf.TensorSpec(target.shape, target.dtype) for target in targets],
        )

    def _go_back(
        self,
        passes: Sequence[SegmentPass],
        terms: Sequence[Counted],
        cotangents: Sequence[tf.Tensor],
    ) -> Gradients:
        """Go back through the segments, given the gradients of terms and of what is sent."""
        remaining = iter(cotangents)
        gradients = Gradients(terms={term.output: next(remaining) for term, _ in terms})
        for transfer, cotangent in zip(self._with_gradient, remaining, strict=True):
            gradients.add_to_tensor(transfer.tensor, cotangent)
        for segment_pass in reversed(passes):
            segment_pass.add_gradients(gradients)
        return gradients

    def _recomputes(self, segment: segments.Segment) -> bool:
        """Whether a segment's activations are computed again.

        If a stage goes back from a microbatch before it takes the next one, the last segment's are
        needed at once.
        """
        if self._partition.segment_ends is None:
            return False
        pipeline = self._partition.pipeline(len(self._rows))
        actions = pipeline.order(pipeline.count, pipeline.microbatches, self.rank.stage.index)
        return not segment.is_last or schedule.peak_microbatches(actions) > 1

    @property
    def _with_gradient(self) -> list[cutting.Transfer]:
        """The transfers to other stages whose gradients come back."""
        return [transfer for transfer in self.rank.stage.sent if self._is_watched(transfer.tensor)]

    @property
    def _watched(self) -> list[cutting.Transfer]:
        """The transfers from other stages whose gradients go back."""
        return [
            transfer for transfer in self.rank.stage.received if self._is_watched(transfer.tensor)
        ]

    def _is_watched(self, number: int) -> bool:
        """Whether a gradient comes back to a tensor."""
        model = self._partition.model
        is_real = model.tensors[number].is_real and number not in model.inputs
        return is_real and number not in self.effects.constant_tensors

    def _check_terms(self, terms: Sequence[Counted]) -> None:
        if self._division is loss_head.LossDivision.LAST and len(terms) > 1:
            raise errors.UserCodeError(
                f"{terms[0][0].title} counts what is not masked, which is known when a "
                f"batch is through all stages, and {self._name_adding()} adds another loss. Remove "
                "one of the two, or use MultiWorkerMirrored.",
                function="build_model",
            )

    def _scale(self, microbatch: int, term: loss.Term, fraction: loss.Fraction) -> tf.Tensor:
        """What a numerator is multiplied by, divided by the batch's denominator if it is known."""
        scale = tf.cast(self.scale, tf.float64) * term.weight
        if term.divided and self._batch_denominators is not None and term.output:
            denominator = self._batch_denominators[self.rank.head.terms.index(term)]
            scale = tf.math.divide_no_nan(scale, denominator)
        elif term.divided and self._division is not loss_head.LossDivision.LAST:
            examples = len(self._rows[microbatch])
            cut = self.rank.loss_cut(examples) if term.output else None
            if cut is not None:
                examples = cut.sizes[self.rank.coordinates[cut.axis]]
            scale = scale * examples / sum(self._workload.shares) / fraction.denominator
        return tf.cast(scale, fraction.numerator.dtype)

    def _name_adding(self) -> str:
        """Name the layer of this stage that has added a loss."""
        for node in self.rank.stage.nodes:
            if node.kind is graph.NodeKind.LAYER and any(
                layer._loss_ids for layer in checks.layers(node.calls)
            ):
                return f"the layer {node.name}"
        return f"a layer of stage {self.rank.stage.index}"

    def _backward(self, action: schedule.Action) -> list[Any]:
        forward = self._forward_results.pop(action.microbatch)

        def address(transfer: cutting.Transfer) -> stage_worker.Address:
            return transfer, programs.Message(action.work, transfer.tensor, action.microbatch)

        cotangents = [
            *(self._scale(action.microbatch, term, fraction) for term, fraction in forward.terms),
            *(self._messages.pop(address(transfer)) for transfer in self._with_gradient),
        ]
        results = [] if forward.pullback is None else forward.pullback(cotangents)
        remaining = iter(results)
        input_gradients = {address(transfer): next(remaining) for transfer in self._watched}
        self._messages |= input_gradients
        computed = list(input_gradients.values())
        for key, total in self._sums.items():
            computed += total.add(forward.work.kinds[key], remaining, self._iteration)
        self._remaining -= 1
        if not self._remaining:
            computed += self._complete_gradients()
        return computed

    def _complete_gradients(self) -> list[tf.Tensor]:
        """Sum up the gradients of all microbatches; returns the tensors to compute."""
        self.gradients |= {
            key: total.total(self.rank.weights[key]) for key, total in self._sums.items()
        }
        return rank_transport.parts(self.gradients.values())


class CompleteGradients:
    """The gradients of a rank as its optimizer takes them."""

    def __init__(self, worker: TrainingWorker, factor: tf.Tensor | None) -> None:
        """Take gradients that are summed over ranks, and what they are multiplied by first."""
        rank = worker.rank
        gradients = self.scaled = _with_penalty(worker, factor)
        """Those of the loss times its scale, without what is kept from earlier steps."""
        self.failed = tf.add_n([tf.zeros((), tf.float64), *_one_by_one(_failed, gradients)])
        """How many are not finite."""
        self.gradients = rank.optimizer.unscaled(gradients)
        nothing = tf.zeros((), tf.float64)
        squares = [nothing] * len(gradients)
        if rank.optimizer.clips_by_norm:
            squares = _one_by_one(update.square, self.gradients)
        self.squares = tf.stack(squares) if squares else tf.zeros((0,), tf.float64)
        """Of each variable; in the end of the whole of it: float64 [trained variables]."""
        owned = [
            square
            for key, square in zip(rank.trained, squares, strict=True)
            if worker.has_all or rank.owns_state(key)
        ]
        self.own_square = tf.add_n([nothing, *owned])
        """Of the parts that this rank speaks for."""


def _with_penalty(worker: TrainingWorker, factor: tf.Tensor | None) -> list[Any]:
    """The gradients of the whole loss, times its scale."""
    trained = worker.rank.trained
    with tf.GradientTape() as tape:
        sources = {
            key: worker.assigned(key)
            for key, variable in trained.items()
            if variable.regularizer is not None
        }
        tape.watch(sources)
        added = worker.penalty(sources)
    seed = tf.cast(worker.scale, tf.float64)
    of_penalty = tape.gradient(added, sources, output_gradients=seed) if sources else {}
    gradients = []
    for key, gradient in worker.gradients.items():
        both = [
            gradient if factor is None else update.times(gradient, factor),
            worker.rank.own_slice(key, of_penalty.get(key)),
        ]
        gradients.append(rank_transport.add(both, [worker.rank.kind(key, part) for part in both]))
    return gradients


def _one_by_one(number: Callable[[Any], tf.Tensor], gradients: Sequence[Any]) -> list[tf.Tensor]:
    """A number of each gradient, 0 where there is none, each after the one before.

    What is computed on the way is as large as the gradient, or twice; so it is there only once.
    """
    numbers: list[tf.Tensor] = []
    for gradient in gradients:
        with tf.control_dependencies(numbers[-1:]):
            numbers.append(tf.zeros((), tf.float64) if gradient is None else number(gradient))
    return numbers


def _failed(gradient: Any) -> tf.Tensor:
    """1 where a gradient is not finite, else 0: a scalar float64."""
    is_finite = tf.reduce_all(tf.math.is_finite(gradient_sums.values(gradient)))
    return tf.cast(~is_finite, tf.float64)
