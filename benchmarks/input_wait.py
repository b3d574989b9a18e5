"""How long the devices wait for their input on the MNIST example."""

import statistics

from benchmarks import processes, results


def measure(size: results.Size) -> list[results.Result]:
    """Run the example in one process."""
    settings: dict[str, object] = {
        "module": "model.py",
        "epochs": size.epochs,
        "globalBatchSize": size.batch,
    }
    source = processes.ROOT / "examples" / "mnist"
    shares: list[float] = []
    for _ in range(size.repeats):
        run = processes.trainer(settings, size, source=source)
        shares += [100 * _metric(event, "input_wait") for event in run.of_kind("train")[1:]]
    return [
        results.Result(
            what="waiting for input, MNIST example",
            target=2.0,
            bound=results.Bound.AT_MOST,
            value=statistics.median(shares),
            unit=" %",
            detail=f"of the time; at most {max(shares):.2g} % in a report",
        )
    ]


def _metric(event: processes.Event, name: str) -> float:
    return float(event.facts["metrics"][name])
