"""Looks at the first step of a script: whether its replicas train one model, or one each.

Light to import: Python does so when a replica starts, long before TensorFlow. What a step shows
comes from `separation`, which is imported then.
"""

import functools
import sys
from types import ModuleType
from typing import Any

_OPTIMIZERS = {
    "keras": (("Optimizer", "apply"),),
    "tf_keras": (("Optimizer", "apply_gradients"), ("legacy.Optimizer", "apply_gradients")),
}
"""The class and the method of each library through which all of its updates of weights go."""

_watched: list[tuple[type, str, Any]] = []
"""Classes whose method is wrapped, and what was there before; None: a base class's."""


def watch() -> None:
    """Look at the first step of each of these libraries, as soon as it is imported."""
    sys.meta_path.insert(0, _Finder())
    for library in _OPTIMIZERS.keys() & sys.modules.keys():
        _wrap(sys.modules[library])


def stop() -> None:
    """Stop the check: the script has taken a step, or trains with `tfparallel_trainer.fit`."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    while _watched:
        owner, method, before = _watched.pop()
        if before is None:
            delattr(owner, method)
        else:
            setattr(owner, method, before)


class _Finder:
    """Finds a library as other finders do, and wraps it after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Give the spec of one of the libraries; None for all other modules."""
        if name not in _OPTIMIZERS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                if module.__name__ == name:  # archives share a loader among modules
                    _wrap(module)

            setattr(spec.loader, "exec_module", exec_module)  # noqa: B010 (mypy: it is a method)
        return spec


def _wrap(library: ModuleType) -> None:
    for name, method in _OPTIMIZERS[library.__name__]:
        owner = functools.reduce(getattr, name.split("."), library.optimizers)
        _watched.append((owner, method, vars(owner).get(method)))
        setattr(owner, method, _looking(getattr(owner, method)))


def _looking(update: Any) -> Any:
    @functools.wraps(update)
    def looking(optimizer: Any, *arguments: Any, **named: Any) -> Any:
        from tfparallel_trainer.scripts import separation

        separation.look(optimizer)
        stop()
        return update(optimizer, *arguments, **named)

    return looking
