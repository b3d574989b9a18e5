"""Chooses how each node is split so that a microbatch takes least, by dynamic programming.

The cost of later nodes depends on a state. It consists of the layouts of the tensors that they
take, of other layouts to which these were converted, and of the layouts of shared variables. Of the
paths to a state, those stay that are cheapest for some number of examples. The result is exact
while there are few states, as in a chain. Of many states, the cheapest stay.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment
from tfparallel_trainer.engines.split.layers.candidates import Candidates, Choice, NodeContext
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import costs

MOST_STATES = 8
"""So many stay behind each node."""

_USUAL_EXAMPLES = 32
"""Of a microbatch, to tell which states are cheapest."""

_ROUNDING = 1e-9
"""Relative difference below which two costs are equal."""

Price = Callable[[Choice], costs.Line]
"""Seconds of a microbatch for a choice; what is the same for all choices may be left out."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Path:
    """Choices for the first nodes of a model, and the seconds of a microbatch that they cost."""

    fixed: float = 0.0
    per_example: float = 0.0
    last: Choice | None = None
    before: "Path | None" = None

    def choices(self) -> tuple[Choice, ...]:
        """In the order of the model's nodes."""
        choices: list[Choice] = []
        path: Path | None = self
        while path is not None and path.last is not None:
            choices.append(path.last)
            path = path.before
        return tuple(reversed(choices))

    def seconds(self, examples: int) -> float:
        """The cost for a microbatch of so many examples."""
        return self.fixed + examples * self.per_example


def search(
    model: graph.Graph,
    degrees: Mapping[shape.Axis, int],
    price: Price,
    most_states: int = MOST_STATES,
) -> list[Path]:
    """Find the choices for a model that are cheapest for some number of examples.

    Raises:
        BadConfigurationError: a node cannot be split as the user chose.
    """
    uncut: frozenset[str] = frozenset()
    while True:
        nodes = _Pass(model, degrees, price, uncut)
        paths = nodes.cheapest_paths(most_states)
        if nodes.conflict is None:
            # Without a view ahead, one path may be cheaper than what stayed of many.
            return _cheapest(paths + nodes.cheapest_paths(1)) if nodes.left_out else paths
        # If nodes that read a variable need different parts of it, none of them is split.
        uncut |= _variables_of_readers(model, nodes.conflict)


class _Horizon(NamedTuple):
    """What the nodes behind a place take of those before it."""

    tensors: tuple[int, ...]
    variables: tuple[str, ...]


class _State(NamedTuple):
    """The layouts of what a horizon names, by numbers of them."""

    layouts: tuple[int, ...]
    converted: frozenset[tuple[int, int]]
    """Tensors of the horizon, and other layouts in which nodes took them."""
    shards: tuple[int, ...]


class _Option(NamedTuple):
    """A choice for a node, with its layouts by numbers."""

    choice: Choice
    cost: costs.Line
    gives: tuple[int, ...]
    converts: frozenset[tuple[int, int]]
    shards: tuple[int, ...]


class _Step:
    """One node between two horizons."""

    def __init__(self, node: graph.Node, before: _Horizon, behind: _Horizon) -> None:
        self.node = node
        self._inputs = [before.tensors.index(tensor) for tensor in node.inputs]
        self._shared = [
            before.variables.index(key) for key in node.variables if key in before.variables
        ]
        self.shared = [before.variables[position] for position in self._shared]
        """The variables that earlier nodes read, too."""
        tensors, variables = (*before.tensors, *node.outputs), (*before.variables, *node.variables)
        self._layouts = [tensors.index(tensor) for tensor in behind.tensors]
        self._shards = [variables.index(key) for key in behind.variables]
        self._input_set = frozenset(node.inputs)
        self._kept = frozenset(behind.tensors)

    def view(self, state: _State) -> _State:
        """What the node's choices depend on: its inputs, and the variables that it shares."""
        return _State(
            tuple([state.layouts[position] for position in self._inputs]),
            frozenset([pair for pair in state.converted if pair[0] in self._input_set]),
            tuple([state.shards[position] for position in self._shared]),
        )

    def follow(self, state: _State, option: _Option) -> _State:
        """The state behind the node."""
        layouts, shards = state.layouts + option.gives, state.shards + option.shards
        converted = state.converted | option.converts
        return _State(
            tuple([layouts[position] for position in self._layouts]),
            frozenset([pair for pair in converted if pair[0] in self._kept]),
            tuple([shards[position] for position in self._shards]),
        )


class _Pass:
    """The nodes of a model, of which some variables must not be divided."""

    def __init__(
        self,
        model: graph.Graph,
        degrees: Mapping[shape.Axis, int],
        price: Price,
        uncut: frozenset[str],
    ) -> None:
        self._model = model
        self._price = price
        self._candidates = Candidates(model, degrees, uncut)
        self._numbers: dict[Any, int] = {}
        self._values: list[Any] = []
        horizons = _horizons(model)
        self._first = horizons[0]
        self._steps = [
            _Step(node, *pair)
            for node, pair in zip(model.nodes, itertools.pairwise(horizons), strict=True)
        ]
        self._options: list[dict[_State, list[_Option]]] = [{} for _ in self._steps]
        self.conflict: _Step | None = None
        """The node that cannot have the parts that earlier nodes have."""
        self.left_out = False
        """Whether there were more states than were to stay."""

    def cheapest_paths(self, most_states: int) -> list[Path]:
        """Return those through all nodes; none if there is a conflict."""
        layouts = assignment.initial_layouts(self._model)
        first = tuple(self._number(layouts[tensor]) for tensor in self._first.tensors)
        reached = {_State(first, frozenset(), ()): [Path()]}
        for index, step in enumerate(self._steps):
            following = self._extend(index, reached)
            if not following:
                self.conflict = step
                return []
            if len(following) > most_states:
                self.left_out = True
                following = _fewer(following, most_states)
            reached = following
        (paths,) = reached.values()  # behind the last node, there is nothing to tell states by
        return paths

    def _extend(self, index: int, reached: Mapping[_State, list[Path]]) -> dict[_State, list[Path]]:
        """Let the paths to states go through one more node; raise if all are refused."""
        step = self._steps[index]
        following: dict[_State, list[Path]] = {}
        refusal: errors.BadConfigurationError | None = None
        for state, paths in reached.items():
            try:
                options = self._find(index, step.view(state))
            except errors.BadConfigurationError as error:
                refusal = refusal or error
                continue
            for option in options:
                following.setdefault(step.follow(state, option), []).extend(
                    [
                        Path(
                            path.fixed + option.cost.fixed,
                            path.per_example + option.cost.per_example,
                            option.choice,
                            path,
                        )
                        for path in paths
                    ]
                )
        if refusal is not None and not following:
            raise refusal
        return {state: _cheapest(paths) for state, paths in following.items()}

    def _find(self, index: int, view: _State) -> list[_Option]:
        """The options of a node, which depend on nothing else."""
        known_options = self._options[index]
        if view not in known_options:
            step = self._steps[index]
            context = NodeContext(
                layouts={
                    tensor: self._values[number]
                    for tensor, number in zip(step.node.inputs, view.layouts, strict=True)
                },
                converted={(tensor, self._values[number]) for tensor, number in view.converted},
                variables={
                    key: self._values[number]
                    for key, number in zip(step.shared, view.shards, strict=True)
                },
            )
            known_options[view] = [
                self._option(choice, context)
                for choice in self._candidates.find(step.node, context)
                if all(choice.variables[key] == context.variables[key] for key in step.shared)
            ]
        return known_options[view]

    def _option(self, choice: Choice, context: NodeContext) -> _Option:
        node = choice.node
        return _Option(
            choice=choice,
            cost=self._price(choice),
            gives=tuple([self._number(choice.split.gives[tensor]) for tensor in node.outputs]),
            converts=frozenset(
                (tensor, self._number(target))
                for tensor, target in choice.split.wants.items()
                if target != context.layouts[tensor]
            ),
            shards=tuple([self._number(choice.variables[key]) for key in node.variables]),
        )

    def _number(self, value: Any) -> int:
        """A number of a layout or a shard, the same for equal ones."""
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number


def _horizons(model: graph.Graph) -> list[_Horizon]:
    """Those before each node, and behind the last one."""
    last_taker: dict[int, int] = {}
    last_reader: dict[str, int] = {}
    for index, node in enumerate(model.nodes):
        last_taker |= dict.fromkeys(node.inputs, index)
        last_reader |= dict.fromkeys(node.variables, index)
    tensors: Sequence[int] = [tensor for tensor in model.inputs if tensor in last_taker]
    variables: Sequence[str] = ()
    horizons = [_Horizon(tuple(tensors), ())]
    for index, node in enumerate(model.nodes):
        read = dict.fromkeys((*variables, *node.variables))
        tensors = [
            tensor for tensor in (*tensors, *node.outputs) if last_taker.get(tensor, -1) > index
        ]
        variables = [key for key in read if last_reader[key] > index]
        horizons.append(_Horizon(tuple(tensors), tuple(variables)))
    return horizons


def _cheapest(paths: Sequence[Path]) -> list[Path]:
    """Of several paths, those that are cheapest for some number of examples from 1."""
    if len(paths) == 1:
        return list(paths)
    kept: list[Path] = []
    for path in sorted(paths, key=lambda path: (path.fixed, path.per_example)):
        if kept and path.per_example >= kept[-1].per_example * (1 - _ROUNDING):
            continue
        while kept and _crossing(kept[-1], path) <= (_crossing(*kept[-2:]) if kept[1:] else 1.0):
            kept.pop()
        kept.append(path)
    return kept


def _crossing(path: Path, other: Path) -> float:
    """From how many examples another path, whose examples cost less, is cheaper."""
    return (other.fixed - path.fixed) / (path.per_example - other.per_example)


def _fewer(reached: Mapping[_State, list[Path]], most: int) -> dict[_State, list[Path]]:
    """The states that are cheapest for a usual number of examples."""

    def least(state: _State) -> float:
        return min(path.seconds(_USUAL_EXAMPLES) for path in reached[state])

    return {state: reached[state] for state in sorted(reached, key=least)[:most]}


def _variables_of_readers(model: graph.Graph, step: _Step) -> frozenset[str]:
    """All variables of a node and of those with which it shares some."""
    readers = (step.node, *(node for node in model.nodes if set(step.shared) & {*node.variables}))
    return frozenset(key for reader in readers for key in reader.variables)
