"""How the rows of an image are divided over ranks, and which rows a layer takes from others. Pure.

Rows run along the axis that the spatial axis of the mesh divides: the height, the length in one
dimension, the first of three. Every tensor is divided alike (`divide`), so a layer's input and its
output need not have heights that fit each other: what a rank lacks for its rows comes from whoever
has it. The share of a layer says what a rank must have, what it adds at the edges of the whole
image, and what of its result is too much. Window arithmetic is that of TensorFlow (`tf.nn.conv2d`
and its transpose), on the size of the whole image.
"""

import dataclasses
import functools
import itertools

Spans = tuple[range, ...]
"""The rows of each rank, counted from the top of the whole image."""


def divide(size: int, ranks: int) -> Spans:
    """Divide rows over ranks as evenly as can be; a ValueError if ranks are more.

    Rank r starts at row floor(r * size / ranks). So the borders of two sizes lie at the same place
    of the image, but for less than one row.
    """
    if size < ranks:
        raise ValueError(f"{size} rows are too few for {ranks} ranks")
    starts = [rank * size // ranks for rank in range(ranks + 1)]
    return tuple(itertools.starmap(range, itertools.pairwise(starts)))


def overlap(first: range, other: range) -> range:
    """The rows in both."""
    return range(max(first.start, other.start), min(first.stop, other.stop))


@dataclasses.dataclass(frozen=True, slots=True)
class RowTransfer:
    """Rows that one rank has and another one needs."""

    source: int
    target: int
    span: range


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What one rank does for its rows of a layer's output.

    It takes the rows `input`, adds `before` and `after` rows of padding, and computes. Of the
    result it leaves out the first `skip` rows, and keeps as many of the others as `output` has.
    Where there are fewer (`skip` may be negative), rows of zeros take their place.
    """

    output: range
    input: range
    before: int = 0
    after: int = 0
    skip: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class RowPlan:
    """What each rank does for its rows of a layer's output, and who gives whom rows for that."""

    owned: Spans
    """The rows of the layer's input that each rank has: each row has one owner."""
    shares: tuple[Share, ...]

    @property
    def needed(self) -> Spans:
        """The rows of the layer's input that each rank takes."""
        return tuple(share.input for share in self.shares)

    @property
    def outputs(self) -> Spans:
        """The rows of the layer's output that each rank makes."""
        return tuple(share.output for share in self.shares)

    @functools.lru_cache  # noqa: B019
    def messages(self) -> tuple[RowTransfer, ...]:
        """What ranks send each other before the layer computes, in one order for all of them.

        Pairs that share no rank are next to each other, so they can exchange at the same time.
        """
        messages = [
            RowTransfer(source, target, rows)
            for source, owned in enumerate(self.owned)
            for target, needed in enumerate(self.needed)
            if source != target and (rows := overlap(owned, needed))
        ]
        messages.sort(key=lambda message: (min(message.source, message.target) % 2, message.source))
        return tuple(messages)

    def sent(self, rank: int) -> int:
        """The rows that a rank gives to others; their gradients come back to it."""
        return sum(len(message.span) for message in self.messages() if message.source == rank)

    def taken(self, rank: int) -> int:
        """The rows that a rank gets from others; it gives their gradients back."""
        return sum(len(message.span) for message in self.messages() if message.target == rank)

    @property
    def reach(self) -> int:
        """How many ranks away the farthest partner is: 1 when only neighbours exchange rows."""
        return max((abs(message.source - message.target) for message in self.messages()), default=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Window:
    """A convolution's or a pooling's window along the rows."""

    length: int
    stride: int = 1
    dilation: int = 1

    @property
    def extent(self) -> int:
        """Rows from its first to its last."""
        return (self.length - 1) * self.dilation + 1

    def output_size(self, size: int, padding: str) -> int:
        """Rows of the output of an input of `size` rows; may be 0 or less for "valid"."""
        if padding == "valid":
            return (size - self.extent) // self.stride + 1
        return -(-size // self.stride)


def windows(owned: Spans, window: Window, padding: str) -> RowPlan:
    """Plan what slides a window over its input; padding is "valid", "same" or "causal"."""
    size = owned[-1].stop
    output_size = window.output_size(size, padding)
    surplus = (output_size - 1) * window.stride + window.extent - size
    above = {"valid": 0, "same": max(surplus, 0) // 2, "causal": window.extent - 1}[padding]

    def share(output: range) -> Share:
        start = output.start * window.stride - above
        stop = (output.stop - 1) * window.stride - above + window.extent
        needed = _inside(start, stop, size)
        return Share(output, needed, before=needed.start - start, after=stop - needed.stop)

    return RowPlan(owned, tuple(map(share, divide(output_size, len(owned)))))


def transposed(owned: Spans, output_size: int, window: Window, padding: str) -> RowPlan:
    """Plan a transposed convolution, which adds each input row into the rows of a window.

    Padding is "valid" or "same", which leaves out what the convolution from output to input adds.
    """
    size = owned[-1].stop
    surplus = (size - 1) * window.stride + window.extent - output_size
    above = max(surplus, 0) // 2 if padding == "same" else 0

    def share(output: range) -> Share:
        first = output.start + above
        start = -(-(first - window.extent + 1) // window.stride)
        stop = (output.stop - 1 + above) // window.stride + 1
        needed = _inside(start, stop, size)
        return Share(output, needed, skip=first - needed.start * window.stride)

    return RowPlan(owned, tuple(map(share, divide(output_size, len(owned)))))


def repeated(owned: Spans, factor: int) -> RowPlan:
    """Plan what repeats each row `factor` times."""

    def share(output: range) -> Share:
        needed = range(output.start // factor, -(-output.stop // factor))
        return Share(output, needed, skip=output.start - needed.start * factor)

    return RowPlan(owned, tuple(map(share, divide(owned[-1].stop * factor, len(owned)))))


def padded(owned: Spans, before: int, after: int) -> RowPlan:
    """Plan what adds rows before and after, or leaves rows out where these are negative."""
    size = owned[-1].stop

    def share(output: range) -> Share:
        start, stop = output.start - before, output.stop - before
        needed = overlap(range(start, stop), range(size))
        if not needed:  # nothing but padding
            return Share(output, range(0), before=len(output))
        return Share(output, needed, before=needed.start - start, after=stop - needed.stop)

    return RowPlan(owned, tuple(map(share, divide(size + before + after, len(owned)))))


def _inside(start: int, stop: int, size: int) -> range:
    """The rows that there are of those asked for, and at least one."""
    start = min(max(start, 0), size - 1)
    return range(start, max(start + 1, min(stop, size)))
