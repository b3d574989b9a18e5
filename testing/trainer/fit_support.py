"""What of Keras' fit holds under which strategy, as docs/how-to/fit.md shows it."""

from collections.abc import Sequence

from tfparallel_trainer.keras_fit import support

_YES, _DIFFERS, _ = support.Verdict
_EVERYWHERE = (_YES, _YES)

ARGUMENTS: Sequence[support.Row] = (
    support.Row(
        "x",
        (_YES, _DIFFERS),
        "arrays, batched data sets, PyDatasets and generators; with servers no data sets",
    ),
    support.Row("y", _EVERYWHERE),
    support.Row(
        "batch_size",
        (_YES, _DIFFERS),
        "of all replicas together; with servers of each worker's step",
    ),
    support.Row("epochs", _EVERYWHERE),
    support.Row(
        "verbose",
        (_DIFFERS, _DIFFERS),
        "the bar moves once a second; no terminal: a line an epoch",
    ),
    support.Row("callbacks", (_YES, _DIFFERS), "see below"),
    support.Row("validation_split", _EVERYWHERE),
    support.Row("validation_data", (_YES, _DIFFERS), "as x"),
    support.Row(
        "shuffle",
        (_DIFFERS, _DIFFERS),
        'the order follows from seed and epoch; "batch" is refused',
    ),
    support.Row("class_weight", _EVERYWHERE),
    support.Row("sample_weight", _EVERYWHERE),
    support.Row("initial_epoch", _EVERYWHERE),
    support.Row("steps_per_epoch", _EVERYWHERE),
    support.Row("validation_steps", _EVERYWHERE),
    support.Row("validation_batch_size", _EVERYWHERE),
    support.Row("validation_freq", _EVERYWHERE),
)


def table(rows: Sequence[support.Row], heading: str) -> str:
    """Write rows as a table for docs/how-to/fit.md."""
    strategies = list(rows[0].verdicts)
    lines = [
        f"| {heading} | {' | '.join(strategies)} | |",
        f"|---|{'---|' * len(strategies)}---|",
        *(f"| `{row.name}` | {' | '.join(row.verdicts.values())} | {row.note} |" for row in rows),
    ]
    return "\n".join(lines)
