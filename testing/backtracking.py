"""Finds regular expressions that can take long, by an automaton and two tests of its ambiguity.

The automaton has a state for each character of the pattern. Two tests (A. Weber and H. Seidl, "On
the degree of ambiguity of finite automata", Theoretical Computer Science 88, 1991) bound the ways
that a matcher may try: exponentially many if a state reaches itself in two ways by one text, and
quadratically many if one text leads a state to itself and to a second one, and that to itself.
"""

import collections
import dataclasses
import itertools
import re
import re._constants as codes  # type: ignore[import-not-found]  # the parser of `re` itself
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

WHOLE, START, ANYWHERE = "fullmatch", "match", "search"
"""Where in a text a pattern may match."""

LONGEST_BOUND = 1000
"""A repeat up to this number takes a bounded time; one beyond it counts as endless."""
_WRITTEN_OUT = 12
"""A repeat up to this number has states for each time."""

_EXAMPLES = frozenset(map(chr, {*range(256), 0x131, 0x663, 0x2003, 0x4E2D, 0x1F600}))
"""Characters of every class, letters, digits and spaces beyond ASCII included."""
_OTHER = "\u4e2d"
_CLASSES = {
    codes.CATEGORY_DIGIT: r"\d",
    codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s",
    codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w",
    codes.CATEGORY_NOT_WORD: r"\W",
}
_CHARACTERS = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)

Ways = collections.Counter[int]
"""The number of ways to reach each state; two means two or more."""
Graph = Mapping[int, Mapping[int, int]]


class Unknown(Exception):  # noqa: N818 (an answer)
    """A pattern has a part that this module does not understand."""


def judge(pattern: str, flags: int = 0, use: str = ANYWHERE) -> str:
    """Return why a pattern may take longer than its text; empty: it does not.

    Args:
        pattern: as `re` takes it.
        flags: of `re`.
        use: where it may match. A pattern that may match anywhere is tried at each position.
    """
    try:
        automaton = _Automaton(pattern, flags, use)
    except Unknown as error:
        return f"has {error}, which this check does not understand; write it in another way"
    if name := automaton.find_exponential():
        return f"can take exponential time at {name}; let each text match in one way only"
    if pair := automaton.find_quadratic():
        return (
            f"can take quadratic time between {pair[0]} and {pair[1]}; let them share no character,"
            f" or bound a repeat by at most {LONGEST_BOUND}"
        )
    return ""


@dataclasses.dataclass(frozen=True)
class _Part:
    """The states that begin and end a part, and the ways to pass it without a character."""

    first: Ways = dataclasses.field(default_factory=Ways)
    last: Ways = dataclasses.field(default_factory=Ways)
    empty: int = 1


class _Automaton:
    def __init__(self, pattern: str, flags: int, use: str) -> None:
        self._sets: list[frozenset[str]] = []
        self._names: list[str] = []
        self._next: dict[int, Ways] = collections.defaultdict(Ways)
        """The states after each state, with the ways to get there."""
        self._endless: dict[int, Ways] = collections.defaultdict(Ways)
        """The same, without bounded repeats."""
        self._groups: dict[int, Any] = {}
        self._in_repeats = 0
        tree = parser.parse(pattern, flags)
        self._flags, items = tree.state.flags, list(tree)
        self._may_fail = use == WHOLE
        """Whether a text that has reached the last state may still fail."""
        before, self._is_anchored = _Part(), use != ANYWHERE or self._has_anchor(items)
        if not self._is_anchored:
            before, items = self._before(items)
        self._last = self._join(before, self._sequence(items)).last

    def find_exponential(self) -> str:
        """Return the name of a state that reaches itself in two ways; empty: none does."""
        for state, component in _components(self._next):
            counts = (more for state in component for more in self._next[state].items())
            if any(number > 1 and other in component for other, number in counts):
                return self._names[state]
            goal, inside = (state, state), (component, component)
            pairs = self._reach(goal, inside, self._next)
            if any(a != b and goal in self._reach((a, b), inside, self._next) for a, b in pairs):
                return self._names[state]
        return ""

    def find_quadratic(self) -> tuple[str, str] | None:
        """Return the names of the two states that one text keeps and connects; None: none does."""
        after = {state: _closure(self._next, state) for state in range(len(self._sets))}
        loops = dict(_components(self._endless))
        # A text that leads to a last state again and again has matched up to there.
        matched = set() if self._may_fail else {*self._last}
        for start, other in itertools.permutations(loops, 2):
            if other not in after[start] or other in matched:
                continue
            between = {state for state in after[start] if other in after[state]} | {other}
            inside = (loops[start], between, loops[other] - matched)
            if (start, other, other) in self._reach((start, start, other), inside, self._next):
                return self._names[start], self._names[other]
        return None

    def _reach(
        self, start: tuple[int, ...], inside: tuple[Set[int], ...], graph: Graph
    ) -> set[tuple[int, ...]]:
        """Return where one text, which is not empty, may lead several states at the same time."""
        reached: set[tuple[int, ...]] = set()
        queue = [start]
        while queue:
            states = queue.pop()
            choices = (graph[s].keys() & part for s, part in zip(states, inside, strict=True))
            for step in itertools.product(*choices):
                if step not in reached and frozenset.intersection(*(self._sets[s] for s in step)):
                    reached.add(step)
                    queue.append(step)
        return reached

    def _has_anchor(self, items: list[Any]) -> bool:
        starts = [codes.AT_BEGINNING_STRING]
        starts += [] if self._flags & re.MULTILINE else [codes.AT_BEGINNING]
        return bool(items) and items[0][0] is codes.AT and items[0][1] in starts

    def _before(self, items: list[Any]) -> tuple[_Part, list[Any]]:
        """Return the text before a pattern, and the pattern without its look-behind."""
        text = self._repeat(lambda: self._state(_EXAMPLES, "the text before"), 0, codes.MAXREPEAT)
        end, items = None, [*items]
        match items:
            case [(codes.AT, codes.AT_BEGINNING), *items]:
                end = frozenset("\n")
            case [(codes.ASSERT_NOT, (-1, inner)), *items] if len(inner) == 1 and (
                inner[0][0] in _CHARACTERS
            ):
                end = _EXAMPLES - self._characters(*inner[0])
        if end is not None:
            line = self._join(text, self._state(end, "the text before"))
            text = _Part(line.first, line.last, 1)
        return text, items

    def _sequence(self, items: Any) -> _Part:
        whole = _Part()
        for code, value in items:
            whole = self._join(whole, self._part(code, value))
        return whole

    def _part(self, code: Any, value: Any) -> _Part:
        if code in _CHARACTERS:
            return self._state(self._characters(code, value), _show(code, value))
        if code in _REPEATS:
            return self._repeat(lambda: self._sequence(value[2]), value[0], value[1])
        if code is codes.SUBPATTERN:
            self._groups[value[0]] = value[3]
            return self._sequence(value[3])
        if code is codes.GROUPREF:  # the same text again
            return self._sequence(self._groups[value])
        if code is codes.BRANCH:
            return self._branch([self._sequence(items) for items in value[1]])
        if code is codes.AT:
            self._may_fail |= value not in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING)
            return _Part()
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            return self._look_around(value[1])
        raise Unknown(f"the construct {str(code).lower()}")

    def _look_around(self, items: Any) -> _Part:
        """Look at a text that is read twice: often, if it is long and stands in many places."""
        self._may_fail = True
        repeats = [code for code in _codes(items) if code in _REPEATS]
        if len(repeats) > 1 or (repeats and (self._in_repeats or not self._is_anchored)):
            raise Unknown("a look-around with a repeat")
        return _Part()

    def _state(self, characters: frozenset[str], name: str) -> _Part:
        self._sets.append(characters)
        self._names.append(name)
        state = Ways([len(self._sets) - 1])
        return _Part(state, state, 0)

    def _join(self, part: _Part, other: _Part) -> _Part:
        self._link(part.last, other.first)
        return _Part(
            _add(part.first, other.first, part.empty),
            _add(other.last, part.last, other.empty),
            min(part.empty * other.empty, 2),
        )

    def _branch(self, parts: list[_Part]) -> _Part:
        first, last = Ways(), Ways()
        for part in parts:
            first, last = _add(first, part.first), _add(last, part.last)
        return _Part(first, last, min(sum(part.empty for part in parts), 2))

    def _repeat(self, build: Callable[[], _Part], least: int, most: int) -> _Part:
        self._in_repeats += 1
        whole, tail = _Part(), _Part()
        for _ in range(min(least, _WRITTEN_OUT)):
            whole = self._join(whole, build())
        if most > _WRITTEN_OUT:
            part = build()
            self._link(part.last, part.first, endless=most > LONGEST_BOUND)
            tail = _Part(part.first, part.last)
        else:
            for _ in range(most - least):
                part = self._join(build(), tail)
                tail = _Part(part.first, part.last)
        self._in_repeats -= 1
        return self._join(whole, tail)

    def _link(self, last: Ways, first: Ways, *, endless: bool = True) -> None:
        for (state, counts), (other, more) in itertools.product(last.items(), first.items()):
            for graph in (self._next, self._endless) if endless else (self._next,):
                graph[state][other] = min(graph[state][other] + counts * more, 2)

    def _characters(self, code: Any, value: Any) -> frozenset[str]:
        if code is codes.ANY:
            return _EXAMPLES if self._flags & re.DOTALL else _EXAMPLES - {"\n"}
        items = value if code is codes.IN else [(code, value)]
        members = (_members(code, value, self._flags) for code, value in items)
        inside = set[str]().union(*members)
        if self._flags & re.IGNORECASE:
            inside = {c for c in _EXAMPLES if {c, c.lower(), c.upper()} & inside}
        is_outside = items[0][0] in (codes.NEGATE, codes.NOT_LITERAL)
        return _EXAMPLES - inside if is_outside else frozenset(inside)


def _codes(node: Any) -> Iterator[Any]:
    """Yield the codes of all parts of a part."""
    if isinstance(node, type(codes.LITERAL)):
        yield node
    elif isinstance(node, list | tuple | parser.SubPattern):
        for inner in node:
            yield from _codes(inner)


def _members(code: Any, value: Any, flags: int) -> set[str]:
    match code:
        case codes.LITERAL | codes.NOT_LITERAL:
            return {chr(value)} & _EXAMPLES or {_OTHER}
        case codes.RANGE:
            return {c for c in _EXAMPLES if value[0] <= ord(c) <= value[1]}
        case codes.CATEGORY:
            pattern = re.compile(_CLASSES[value], flags & re.ASCII)
            return {c for c in _EXAMPLES if pattern.fullmatch(c)}
    return set()


def _components(graph: Graph) -> Iterator[tuple[int, set[int]]]:
    """Yield each state that can reach itself, with all that it reaches and that reach it."""
    after = {state: _closure(graph, state) for state in list(graph)}
    for state, reached in after.items():
        if state in reached:
            yield state, {other for other in reached if state in after.get(other, ())}


def _closure(graph: Graph, state: int) -> set[int]:
    reached: set[int] = set()
    queue = [state]
    while queue:
        steps = graph.get(queue.pop(), {}).keys() - reached
        reached |= steps
        queue += steps
    return reached


def _add(counts: Ways, more: Ways, factor: int = 1) -> Ways:
    return Ways(
        {
            state: min(counts[state] + more[state] * factor, 2)
            for state in counts | more
            if counts[state] + more[state] * factor
        }
    )


def _show(code: Any, value: Any) -> str:
    names: Mapping[Any, Callable[[Any], str]] = {
        codes.NEGATE: lambda _: "^",
        codes.LITERAL: chr,
        codes.CATEGORY: _CLASSES.__getitem__,
        codes.RANGE: lambda pair: f"{chr(pair[0])}-{chr(pair[1])}",
    }
    match code:
        case codes.LITERAL:
            return repr(chr(value))
        case codes.NOT_LITERAL:
            return f"[^{chr(value)}]"
        case codes.IN:
            return "[" + "".join(names[kind](item) for kind, item in value) + "]"
    return "."
