"""What each strategy supports of Keras' fit, as docs/how-to/fit.md shows it."""

from collections.abc import Sequence

from tfparallel_trainer.keras_fit import supported_arguments

_YES, _DIFFERS, _ = supported_arguments.Verdict
_EVERYWHERE = (_YES, _YES)

ARGUMENTS: Sequence[supported_arguments.SupportedArgument] = (
    supported_arguments.SupportedArgument(
        "x",
        (_YES, _DIFFERS),
        "arrays, batched data sets, PyDatasets and generators; with servers no data sets",
    ),
    supported_arguments.SupportedArgument("y", _EVERYWHERE),
    supported_arguments.SupportedArgument(
        "batch_size",
        (_YES, _DIFFERS),
        "of all replicas together; with servers of each worker's step",
    ),
    supported_arguments.SupportedArgument("epochs", _EVERYWHERE),
    supported_arguments.SupportedArgument(
        "verbose",
        (_DIFFERS, _DIFFERS),
        "the bar moves once a second; no terminal: a line an epoch",
    ),
    supported_arguments.SupportedArgument("callbacks", (_YES, _DIFFERS), "see below"),
    supported_arguments.SupportedArgument("validation_split", _EVERYWHERE),
    supported_arguments.SupportedArgument("validation_data", (_YES, _DIFFERS), "as x"),
    supported_arguments.SupportedArgument(
        "shuffle",
        (_DIFFERS, _DIFFERS),
        'the order follows from seed and epoch; "batch" is refused',
    ),
    supported_arguments.SupportedArgument("class_weight", _EVERYWHERE),
    supported_arguments.SupportedArgument("sample_weight", _EVERYWHERE),
    supported_arguments.SupportedArgument("initial_epoch", _EVERYWHERE),
    supported_arguments.SupportedArgument("steps_per_epoch", _EVERYWHERE),
    supported_arguments.SupportedArgument("validation_steps", _EVERYWHERE),
    supported_arguments.SupportedArgument("validation_batch_size", _EVERYWHERE),
    supported_arguments.SupportedArgument("validation_freq", _EVERYWHERE),
)


def table(rows: Sequence[supported_arguments.SupportedArgument], heading: str) -> str:
    """Write rows as a table for docs/how-to/fit.md."""
    strategies = list(rows[0].verdicts)
    lines = [
        f"| {heading} | {' | '.join(strategies)} | |",
        f"|---|{'---|' * len(strategies)}---|",
        *(f"| `{row.name}` | {' | '.join(row.verdicts.values())} | {row.note} |" for row in rows),
    ]
    return "\n".join(lines)
