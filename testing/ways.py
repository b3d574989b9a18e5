"""The ways through the code in docs/explanation/architecture.md, and what really happens there."""

import dataclasses
import inspect
import pathlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from testing import paths

PAGE = paths.PAGES / "explanation/architecture.md"


@dataclasses.dataclass(frozen=True)
class Way:
    """A list of the page: modules in their order, and those that the list leaves out."""

    steps: tuple[tuple[str, str], ...]
    """Module and function; the function is empty if the page names none."""
    others: frozenset[str]
    """Modules, and folders that end with `/`."""

    def has(self, module: str) -> bool:
        """Whether the page names the module, or a folder of it."""
        return module in self.others | {step[0] for step in self.steps} or any(
            module.startswith(other) for other in self.others if other.endswith("/")
        )


def read(heading: str) -> Way:
    """Return the way below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"{heading}\n")[1].split("\n##")[0]
    steps = re.findall(r"^\d+\. `([\w/.]+)`(?:, `([\w.]+)`)?", text, re.M)
    others = re.findall(r"`([\w/]+(?:\.py|/))`", text[text.index("Not listed") :])
    return Way(tuple(steps), frozenset(others))


class Recorder:
    """Records which functions of some packages are called first, in one thread."""

    def __init__(self, *packages: pathlib.Path) -> None:
        self._roots = [f"{package}/" for package in packages]
        self.calls: dict[tuple[str, str], None] = {}
        """Module and function, in the order of their first calls."""

    @property
    def modules(self) -> set[str]:
        """The modules of which something was called."""
        return {module for module, _ in self.calls}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the calls of the body."""
        sys.setprofile(self._take)
        try:
            yield
        finally:
            sys.setprofile(None)

    def check(self, walk: Way) -> None:
        """Check that each step is called, in the order of the page, and nothing else."""
        assert len({*walk.steps}) == len(walk.steps)
        order = {call: number for number, call in enumerate(self.calls)}
        assert [step for step in walk.steps if step not in order] == []
        assert [*walk.steps] == sorted(walk.steps, key=order.__getitem__)
        assert sorted(module for module in self.modules if not walk.has(module)) == []

    def _take(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event != "call" or not is_function:
            return
        for root in self._roots:
            if code.co_filename.startswith(root):
                self.calls.setdefault((code.co_filename.removeprefix(root), code.co_qualname))
