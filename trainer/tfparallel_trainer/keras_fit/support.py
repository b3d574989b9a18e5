"""Which of Keras' callbacks hold under which strategy: the one place that says so.

`fit` refuses by it, docs/how-to/fit.md shows it, and the tests run what it claims.
"""

import dataclasses
import enum
from collections.abc import Sequence

STRATEGIES = ("Mirrored", "MultiWorkerMirrored", "ParameterServer", "ModelSplit")


class Verdict(enum.StrEnum):
    """Of an argument or a callback under a strategy."""

    YES = "yes"
    DIFFERS = "differs"
    """It is honoured, and the note says what is not as in Keras."""
    REFUSED = "refused"


_YES, _DIFFERS, _REFUSED = Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """An argument of Keras' fit, or a callback."""

    name: str
    together: Verdict
    """Under Mirrored and MultiWorkerMirrored, which are one engine."""
    servers: Verdict
    """Under ParameterServer."""
    note: str = ""
    divided: Verdict | None = None
    """Under ModelSplit, for the callbacks of a module; None for what is of `fit` alone."""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By strategy."""
        ordered = (self.together, self.together, self.servers, self.divided)
        return {
            strategy: verdict
            for strategy, verdict in zip(STRATEGIES, ordered, strict=True)
            if verdict is not None
        }


CALLBACKS: Sequence[Row] = (
    Row(
        "BackupAndRestore",
        _REFUSED,
        _REFUSED,
        "give output_dir, or trainer.checkpoint: these checkpoints do the same",
        _REFUSED,
    ),
    Row("CSVLogger", _YES, _YES, "", _YES),
    Row(
        "Callback",
        _DIFFERS,
        _DIFFERS,
        "your own: runs on the chief, and on_test_batch_end gets no logs. With servers a batch "
        "ends when a worker gets it. With ModelSplit there is no model to look into",
        _DIFFERS,
    ),
    Row("CallbackList", _YES, _YES, "its callbacks are taken", _YES),
    Row(
        "EarlyStopping",
        _YES,
        _YES,
        "with ModelSplit without restore_best_weights",
        _DIFFERS,
    ),
    Row("History", _YES, _YES, "", _YES),
    Row(
        "LambdaCallback",
        _YES,
        _DIFFERS,
        "with servers a batch ends when it is given to a worker",
        _YES,
    ),
    Row("LearningRateScheduler", _YES, _YES, "", _YES),
    Row(
        "ModelCheckpoint",
        _YES,
        _YES,
        "give trainer.checkpoint instead, which saves each device's part of the model",
        _REFUSED,
    ),
    Row(
        "OrbaxCheckpoint",
        _REFUSED,
        _REFUSED,
        "give output_dir or trainer.checkpoint, or use ModelCheckpoint",
        _REFUSED,
    ),
    Row("ProgbarLogger", _YES, _YES, "", _YES),
    Row("ReduceLROnPlateau", _YES, _YES, "", _YES),
    Row("RemoteMonitor", _YES, _YES, "", _YES),
    Row(
        "SwapEMAWeights",
        _YES,
        _REFUSED,
        "servers refuse use_ema, which it needs; in a module averages are evaluated in any case",
        _REFUSED,
    ),
    Row(
        "TensorBoard",
        _YES,
        _YES,
        "with ModelSplit give write_graph=False, and no histograms, images or embeddings",
        _DIFFERS,
    ),
    Row("TerminateOnNaN", _YES, _YES, "without it, such a loss raises", _YES),
)
