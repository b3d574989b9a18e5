"""Shortens what each start of a process takes: imports, and the work up to the first step.

Keras imports scikit-learn and Matplotlib where they are installed, for wrappers and pictures that
training seldom uses. And the garbage collector goes again and again through what a start leaves,
which is no garbage: modules, a model, traced functions.
"""

import contextlib
import gc
import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

_SELDOM_USED = frozenset({"keras.src.visualization", "keras.visualization", "keras.wrappers"})
"""Modules that are loaded only when somebody takes something from them."""

_RARELY = 100_000, 10, 10
"""Thresholds of the collector: after so many new objects it searches them, not after 700."""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import quickly what the body imports; it collects no garbage meanwhile."""
    was_enabled, finder = gc.isenabled(), _SeldomUsedFinder()
    gc.disable()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        gc.freeze()  # it stays until the process ends
        if was_enabled:
            gc.enable()


def collect_rarely(until: contextlib.ExitStack) -> None:
    """Let Python search for garbage rarely until the stack is closed."""
    until.callback(gc.set_threshold, *gc.get_threshold())
    gc.set_threshold(*_RARELY)


class _SeldomUsedFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module that is seldom used, so that it is loaded late."""
        if name not in _SELDOM_USED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LateLoader(spec.loader)
        return spec


class _LateLoader(importlib.abc.Loader):
    """Loads a module when it is asked for what it does not have yet.

    That of the standard library loads it for its `__file__`, too, which `inspect` reads of all.
    """

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader
        self._changing = threading.RLock()

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty for now."""
        is_loading = False

        def load(name: str) -> Any:
            nonlocal is_loading
            with self._changing:
                if is_loading:  # it asks for a module of its own that it is about to import
                    raise AttributeError(name)
                if vars(module).get("__getattr__") is load:
                    is_loading = True
                    try:
                        self._loader.exec_module(module)
                        del module.__getattr__
                    finally:
                        is_loading = False
            return getattr(module, name)

        vars(module)["__getattr__"] = load
