"""Where to cut a model, by the names of the layers that stages begin with. Pure."""

from collections.abc import Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph

_SHOWN = 30
"""Names that a sentence lists."""


def ends(model: graph.Graph, names: Sequence[str]) -> list[int]:
    """Say behind how many nodes each stage but the last one ends.

    Args:
        model: the graph.
        names: the layer, or the model within the model, that each stage but the first begins with,
            as in `Node.name`. Of several calls the first counts.

    Raises:
        BadConfigurationError: there is no such layer, or it is not behind the one before.
    """
    called = [node.name.partition("#")[0] for node in model.nodes]
    stage_ends: list[int] = []
    for name in names:
        places = [
            place
            for place, layer in enumerate(called)
            if layer == name or layer.startswith(f"{name}/")
        ]
        if not places:
            raise errors.BadConfigurationError(
                f"mesh.cuts names {name!r}, and the model calls {_listed(called)}: give one of "
                "these names, or that of a model among them."
            )
        if places[0] <= (stage_ends[-1] if stage_ends else 0):
            before = repr(names[len(stage_ends) - 1]) if stage_ends else "the first layer"
            raise errors.BadConfigurationError(
                f"mesh.cuts names {name!r}, which is not called behind {before}: give names in the "
                f"order of the calls, {_listed(called)}."
            )
        stage_ends.append(places[0])
    return stage_ends


def _listed(called: Sequence[str]) -> str:
    names = list(dict.fromkeys(called))
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
