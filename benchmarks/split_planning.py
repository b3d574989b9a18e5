"""How long it takes to plan a model without a mesh."""

import statistics

from benchmarks import processes, results

_DEVICES = 4
_MOST_SECONDS = 1.0


def measure(size: results.Size) -> list[results.Result]:
    """Plan each model, several times in one process."""
    most = () if size.cases == results.FULL.cases else (size.cases,)
    run = processes.script("planning", (_DEVICES, size.repeats, *most), size)
    events: dict[str, list[processes.Event]] = {}
    for one in run.of("planned"):
        events.setdefault(one.facts["model"], []).append(one)
    took = {name: [one.number("planned") for one in runs] for name, runs in events.items()}
    slowest = max(took, key=lambda name: statistics.median(took[name]))
    recorded = [one.number("recorded") for one in events[slowest]]
    return [
        results.Result(
            what=f"planning beyond building the model, the slowest of {len(took)}",
            target=_MOST_SECONDS,
            bound=results.Bound.AT_MOST,
            value=statistics.median(took[slowest]),
            unit=" s",
            detail=f"{slowest} on {_DEVICES} devices, mesh and microbatches chosen: "
            f"{results.middle(took[slowest])}; the copy that Keras makes of the model so that its "
            f"graph is known: {results.middle(recorded)}",
        )
    ]
