"""Seconds and bytes of every stage that two downsets leave between them, as matrices. Pure."""

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.planning import (
    blocks,
    costs,
    cuts,
    hardware,
    kept_stages,
    parameter_memory,
    recomputed_stages,
    search_space,
)
from tfparallel_trainer.engines.split.planning.blocks import Block

_ADDING = 3.0
"""Bytes read and written for each byte of a gradient that is added to another one."""

_SHARING = 6.0
"""Bytes read and written for each byte of a weight that ranks update in slices.

Gradients are packed before they are sent, and received slices are joined to a weight."""

_UPDATE_COPIES = 1.0
"""Of the largest gradient, while the optimizer applies it."""

_SUMS = 2
"""Sums of a few numbers over all ranks in a step: the loss, and the norms of gradients."""


class Tables:
    """Of one model in blocks, with one way for each node."""

    def __init__(
        self,
        subject: costs.Subject,
        block_graph: Sequence[Block],
        downsets: Sequence[int],
        shardings: Sequence[costs.Sharding],
    ) -> None:
        self.subject = subject
        self.blocks = tuple(block_graph)
        self.downsets = tuple(downsets)
        self.shardings = tuple(shardings)
        """Of each node."""
        self._costs = subject.costs
        self._cluster = subject.cluster
        times = subject.times
        self._forward = np.array(
            [(node_time.forward.fixed, node_time.forward.per_example) for node_time in times]
        ).T
        self._backward = np.array(
            [(node_time.backward.fixed, node_time.backward.per_example) for node_time in times]
        ).T
        self._compute = np.array([node_sharding.compute for node_sharding in self.shardings])
        self._ahead = np.array([node_sharding.forward for node_sharding in self.shardings]).T
        self._back = np.array([node_sharding.backward for node_sharding in self.shardings]).T
        self._makers = {
            tensor: index
            for index, node in enumerate(subject.model.nodes)
            for tensor in node.outputs
        }
        places = range(len(self.blocks))
        self._block_of = {node: index for index in places for node in self.blocks[index].nodes}
        bits = [[downset >> index & 1 for index in places] for downset in downsets]
        self._membership = np.array(bits, dtype=float)
        self.valid: npt.NDArray[np.bool_] = blocks.stages(
            subject.model, self.blocks, self._costs.colocated, self._membership
        )
        """Whether there may be a stage between two downsets."""
        self.most_stages = blocks.most_stages(self.valid)
        """Into how many stages the model can be cut."""

    def matrices(
        self, setting: search_space.Setting
    ) -> tuple[list[cuts.Matrix], list[cuts.Matrix]]:
        """Rows and loads of stages, as `cuts` defines them; infinite where none is or fits."""
        work = self._between(self._work(setting))
        updates = self.sums(setting) + self.applies(setting)
        limit = self._cluster.device.memory
        rows, loads = [], []
        for stage in range(setting.mesh.stage):
            row = work + self._recomputing(setting, stage) + self._messages(setting, stage)
            load = (setting.microbatches - 1) * row + updates
            impossible = ~self.valid
            if limit is not None:
                impossible |= self.memory(setting, stage)["peak"] > limit
            row[impossible] = load[impossible] = np.inf
            rows.append(row)
            loads.append(load)
        return rows, loads

    def sums(self, setting: search_space.Setting) -> cuts.Matrix:
        """Seconds in which a stage adds up gradients, and all ranks a few numbers."""
        gradients, mesh = self.variables.gradients, setting.mesh
        numbers = _SUMS * self._cluster.link(range(mesh.size)).total(mesh.size, 0.0)
        if mesh.data == 1:
            return np.full_like(gradients, numbers)
        group = mesh.group(0, shape.Axis.DATA).ranks
        link = self._cluster.link(group)
        steps = link.total(len(group), 0.0)
        return numbers + steps + gradients * (link.total(len(group), 1.0) - steps)

    def applies(self, setting: search_space.Setting) -> cuts.Matrix:
        """Seconds of a stage's optimizer: it reads and writes weights and slots."""
        variables, update = self.variables, self._cluster.device.update
        ranks = setting.replicas_of_slots
        moved = (2 * variables.parameters + variables.gradients) / ranks
        moved += 2 * variables.slots(ranks)
        if ranks > 1:
            moved += _SHARING * variables.gradients
        return variables.trained * update.weight_seconds + moved / update.bandwidth

    def memory(self, setting: search_space.Setting, stage: int) -> dict[str, cuts.Matrix]:
        """Bytes of a rank of a stage, by the fields of `plan.Bytes`.

        Weights, slots, gradients and the batch are there all the time: no weight changes before all
        gradients are known to be finite. With them are either activations and the node that runs,
        or what sums and the optimizer compute from the gradients.
        """
        variables, microbatches = self.variables, setting.held_microbatches(stage)
        ranks = setting.replicas_of_slots
        kept, segment = self._stages.kept, np.zeros_like(self._stages.kept)
        working = self._stages.widest
        if setting.recomputes:
            recomputed = self._recomputed
            kept, segment = recomputed.kept, recomputed.segment(microbatches)
            running = recomputed.running(microbatches)
        elif setting.microbatches > 1:
            running = self._stages.running
            working = running - kept
        else:
            running = self._stages.running_alone
        running = setting.examples * ((microbatches - 1) * kept + running)
        added = np.zeros_like(kept)
        if setting.microbatches > 1:
            # The gradients of a microbatch, next to the sum of those before it.
            added = self._between(self._by_block(self._gradients))
            if microbatches < setting.microbatches:
                running = running + added
            else:  # the first of them is the sum
                running = np.maximum(running, running - setting.examples * kept + added)
        batch = setting.examples * setting.microbatches * self._costs.batch_bytes
        updating = variables.copies(ranks) + _UPDATE_COPIES * variables.largest
        if setting.mesh.data > 1:
            # Sums next to what was added up; ranks that share an update also send their slices.
            sent = 1 / ranks if ranks > 1 else 0.0
            updating = np.maximum(updating, (1 + sent) * variables.gradients)
        peak = variables.state(ranks) + batch + np.maximum(running, updating)
        return {
            "parameters": variables.parameters,
            "gradients": variables.gradients,
            "slots": variables.slots(ranks),
            "activations": setting.examples * (microbatches * kept + segment) + batch,
            "working": setting.examples * working + added,
            "peak": np.where(self.valid, peak, np.inf),
        }

    def nodes(self, first: int, second: int) -> tuple[int, ...]:
        """The nodes of a stage between two downsets, by position."""
        bits = self.downsets[second] & ~self.downsets[first]
        chosen = (block.nodes for index, block in enumerate(self.blocks) if bits >> index & 1)
        return tuple(sorted(itertools.chain.from_iterable(chosen)))

    def seconds(
        self, nodes: Sequence[int], setting: search_space.Setting, stage: int
    ) -> tuple[float, float]:
        """Seconds of a stage's nodes for one microbatch, forward and backward, without messages."""
        forward, backward = self._durations(setting)
        recomputed: Sequence[int] = ()
        if setting.recomputes:
            keeps_last = setting.held_microbatches(stage) == 1
            recomputed = self._recomputed.before_last(nodes) if keeps_last else nodes
        again = forward[list(recomputed)].sum()
        return float(forward[list(nodes)].sum()), float(backward[list(nodes)].sum() + again)

    def message_bytes(self, tensor: int) -> float:
        """Bytes of a tensor of one example that a rank holds and sends."""
        maker = self._makers.get(tensor)
        share = 1.0 if maker is None else self.shardings[maker].kept
        return self._costs.tensors[tensor].bytes * share

    def directions(self, tensor: int) -> int:
        """How many messages a transfer of a tensor is: its gradient, if it has one, goes back."""
        return 1 + self._costs.tensors[tensor].has_gradient

    @functools.cached_property
    def variables(self) -> parameter_memory.MemoryOfVariables:
        """What a stage holds of variables."""
        return parameter_memory.MemoryOfVariables(
            self.subject, self.shardings, self._block_of, self._membership
        )

    def _durations(self, setting: search_space.Setting) -> tuple[cuts.Vector, cuts.Vector]:
        """Seconds of each node for one microbatch, forward and backward, without messages."""
        link = hardware.link_within(setting.mesh, self._cluster)
        scaled = setting.examples * self._compute
        sent = np.array([link.latency, 1 / link.bandwidth, setting.examples / link.bandwidth])
        # A microbatch adds its gradients to those before it.
        added = _ADDING * self._gradients * (1 - 1 / setting.microbatches)
        forward = self._forward[0] + self._forward[1] * scaled + sent @ self._ahead
        backward = self._backward[0] + self._backward[1] * scaled + sent @ self._back
        return forward, backward + added / self._cluster.device.update.bandwidth

    @functools.cached_property
    def _gradients(self) -> cuts.Vector:
        """Bytes of gradients that each node adds up."""
        shares = [
            max((sharding.variables.get(key, 1.0) for key in node.variables), default=1.0)
            for node, sharding in zip(self.subject.model.nodes, self.shardings, strict=True)
        ]
        return np.array([node_costs.gradient_bytes for node_costs in self._costs.nodes]) * shares

    def _between(self, of_blocks: cuts.Vector) -> cuts.Matrix:
        """Sums over the blocks of a stage, from what each block has."""
        total = self._membership @ of_blocks
        return np.asarray(total[None, :] - total[:, None])

    def _work(self, setting: search_space.Setting) -> cuts.Vector:
        """Seconds of each block for one microbatch, without messages."""
        forward, backward = self._durations(setting)
        return self._by_block(forward + backward)

    def _by_block(self, of_nodes: cuts.Vector) -> cuts.Vector:
        """Sums over the nodes of each block."""
        homes = [self._block_of[node] for node in range(len(of_nodes))]
        return np.bincount(homes, weights=of_nodes, minlength=len(self.blocks)).astype(float)

    def _recomputing(self, setting: search_space.Setting, stage: int) -> cuts.Matrix | float:
        """Seconds in which a stage computes the activations of one microbatch again.

        A stage that goes back from each microbatch at once has its last segment's.
        """
        if not setting.recomputes:
            return 0.0
        forward, _ = self._durations(setting)
        seconds = self._between(self._by_block(forward))
        if setting.held_microbatches(stage) > 1:
            return seconds
        return seconds - self._recomputed.last_segment(forward)

    @functools.cached_property
    def _stages(self) -> kept_stages.KeptStages:
        return kept_stages.KeptStages(
            self.subject, self.shardings, self.blocks, self._membership, self._crossing
        )

    @functools.cached_property
    def _recomputed(self) -> recomputed_stages.RecomputedStages:
        return recomputed_stages.RecomputedStages(
            self.subject, self.shardings, self._block_of, self._membership, self._crossing
        )

    @functools.cached_property
    def _crossing(self) -> cuts.Crossing:
        model = self.subject.model
        return cuts.Crossing(model, self._makers, self._block_of, self._membership)

    @functools.cached_property
    def _traffic(self) -> tuple[tuple[cuts.Matrix, cuts.Matrix], tuple[cuts.Matrix, cuts.Matrix]]:
        """Of a stage: bytes of an example and messages that it takes, and that it gives.

        Both directions are counted. A tensor that several stages take is given once here; the exact
        number is known when all cuts are.
        """
        tensors = self._crossing.tensors
        messages = np.array([float(self.directions(number)) for number in tensors])
        moved = messages * np.array([self.message_bytes(number) for number in tensors])
        received, sent = self._crossing.received, self._crossing.sent
        return (received(moved), received(messages)), (sent(moved), sent(messages))

    def _messages(self, setting: search_space.Setting, stage: int) -> cuts.Matrix:
        """Seconds of a stage's messages for one microbatch, both ends waiting."""
        seconds = np.zeros(self.valid.shape)
        for other, (moved, messages) in zip((stage - 1, stage + 1), self._traffic, strict=True):
            if 0 <= other < setting.mesh.stage:
                link = hardware.link_between(setting.mesh, self._cluster, stage, other)
                seconds += moved * setting.examples / link.bandwidth
                seconds += messages * link.latency
        return seconds
