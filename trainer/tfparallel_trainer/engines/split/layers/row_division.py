"""Divides the rows of an image over ranks, and plans the rows that a layer needs from other ranks.

Pure.

Rows are the dimension that the spatial axis of the mesh divides: the height, the length in one
dimension, or the first of three. Every tensor is divided in the same way (`divide`), so the heights
of a layer's input and output need not match. A rank gets the rows that it lacks from the ranks that
have them. The share of a layer says which rows a rank needs. It also says which rows it adds at the
edges of the whole image, and which rows of the result it drops. Window arithmetic is that of
TensorFlow (`tf.nn.conv2d` and its transpose), on the size of the whole image.
"""

import dataclasses
import functools
import itertools

Spans = tuple[range, ...]
"""The rows of each rank, counted from the top of the whole image."""


def divide(size: int, ranks: int) -> Spans:
    """Divide rows over ranks as evenly as possible; a ValueError if there are more ranks.

    Rank r starts at row floor(r * size / ranks). So the borders of two sizes are less than one row
    apart in the image.
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
    """Rows that one rank sends to another."""

    source: int
    target: int
    span: range


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The computation of one rank's rows of a layer's output.

    It takes the rows `input`, adds `before` and `after` rows of padding, and computes. It drops the
    first `skip` rows of the result, and keeps as many of the others as `output` has. Missing rows
    (`skip` may be negative) are zeros.
    """

    output: range
    input: range
    before: int = 0
    after: int = 0
    skip: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class RowPlan:
    """The shares of all ranks in a layer's output, and the transfers of rows between them."""

    owned: Spans
    """The rows of the layer's input that each rank has: each row has one owner."""
    shares: tuple[Share, ...]

    @property
    def needed(self) -> Spans:
        """The rows of the layer's input that each rank takes."""
        return tuple(share.input for share in self.shares)

    @property
    def outputs(self) -> Spans:
        """The rows of the layer's output that each rank computes."""
        return tuple(share.output for share in self.shares)

    @functools.lru_cache  # noqa: B019
    def messages(self) -> tuple[RowTransfer, ...]:
        """The transfers before the layer computes, in one order for all ranks.

        Pairs without a common rank are next to each other, so they can exchange at the same time.
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
        """The rows that a rank sends to others; it gets their gradients back."""
        return sum(len(message.span) for message in self.messages() if message.source == rank)

    def taken(self, rank: int) -> int:
        """The rows that a rank receives from others; it sends their gradients back."""
        return sum(len(message.span) for message in self.messages() if message.target == rank)

    @property
    def reach(self) -> int:
        """The distance in ranks of the farthest partner: 1 if only neighbours exchange rows."""
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
    """Plan a layer that slides a window over its input; padding is "valid", "same" or "causal"."""
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

    Padding is "valid" or "same", which drops the padding of the convolution from output to input.
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
    """Plan a layer that repeats each row `factor` times."""

    def share(output: range) -> Share:
        needed = range(output.start // factor, -(-output.stop // factor))
        return Share(output, needed, skip=output.start - needed.start * factor)

    return RowPlan(owned, tuple(map(share, divide(owned[-1].stop * factor, len(owned)))))


def padded(owned: Spans, before: int, after: int) -> RowPlan:
    """Plan a layer that adds rows before and after, or drops rows if the numbers are negative."""
    size = owned[-1].stop

    def share(output: range) -> Share:
        start, stop = output.start - before, output.stop - before
        needed = overlap(range(start, stop), range(size))
        if not needed:  # only padding
            return Share(output, range(0), before=len(output))
        return Share(output, needed, before=needed.start - start, after=stop - needed.stop)

    return RowPlan(owned, tuple(map(share, divide(size + before + after, len(owned)))))


def _inside(start: int, stop: int, size: int) -> range:
    """The existing ones of the requested rows, at least one."""
    start = min(max(start, 0), size - 1)
    return range(start, max(start + 1, min(stop, size)))
