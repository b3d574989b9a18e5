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
    for event in run.of_kind("planned"):
        events.setdefault(event.facts["model"], []).append(event)
    seconds_by_model = {
        name: [event.number("planned") for event in runs] for name, runs in events.items()
    }
    slowest = max(seconds_by_model, key=lambda name: statistics.median(seconds_by_model[name]))
    recorded = [event.number("recorded") for event in events[slowest]]
    return [
        results.Result(
            what=f"planning beyond building the model, the slowest of {len(seconds_by_model)}",
            target=_MOST_SECONDS,
            bound=results.Bound.AT_MOST,
            value=statistics.median(seconds_by_model[slowest]),
            unit=" s",
            detail=f"{slowest} on {_DEVICES} devices, mesh and microbatches chosen: "
            f"{results.middle(seconds_by_model[slowest])}; the copy that Keras makes of the model "
            f"so that its graph is known: {results.middle(recorded)}",
        )
    ]
