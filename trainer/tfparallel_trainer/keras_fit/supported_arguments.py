"""Which of Keras' callbacks hold under which strategy: the one place that says so.

`fit` refuses by it, docs/how-to/fit.md shows it, and the tests run what it claims.
"""

import dataclasses
import enum
from collections.abc import Sequence

from tfparallel_trainer.contract.job_file import Strategy

STRATEGIES = (
    Strategy.MIRRORED,
    Strategy.MULTI_WORKER_MIRRORED,
    Strategy.PARAMETER_SERVER,
    Strategy.MODEL_SPLIT,
)


class Verdict(enum.StrEnum):
    """Of an argument or a callback under a strategy."""

    YES = "yes"
    DIFFERS = "differs"
    """It is honoured, and the note says what is not as in Keras."""
    REFUSED = "refused"


_YES, _DIFFERS, _REFUSED = Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class SupportedArgument:
    """An argument of Keras' fit, or a callback."""

    name: str
    by_engine: tuple[Verdict, ...]
    """Under Mirrored and MultiWorkerMirrored, which are one engine, and under ParameterServer; for
    callbacks, which modules have too, also under ModelSplit."""
    note: str = ""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By strategy."""
        return dict(zip(STRATEGIES, (self.by_engine[0], *self.by_engine), strict=False))


_EVERYWHERE, _NOWHERE = (_YES,) * 3, (_REFUSED,) * 3

CALLBACKS: Sequence[SupportedArgument] = (
    SupportedArgument(
        "BackupAndRestore",
        _NOWHERE,
        "give output_dir, or trainer.checkpoint: these checkpoints do the same",
    ),
    SupportedArgument("CSVLogger", _EVERYWHERE),
    SupportedArgument(
        "Callback",
        (_DIFFERS, _DIFFERS, _DIFFERS),
        "your own: runs on the chief, and on_test_batch_end gets no logs. With servers a batch "
        "ends when a worker gets it. With ModelSplit there is no model to look into",
    ),
    SupportedArgument("CallbackList", _EVERYWHERE, "its callbacks are taken"),
    SupportedArgument(
        "EarlyStopping", (_YES, _YES, _DIFFERS), "with ModelSplit without restore_best_weights"
    ),
    SupportedArgument("History", _EVERYWHERE),
    SupportedArgument(
        "LambdaCallback",
        (_YES, _DIFFERS, _YES),
        "with servers a batch ends when it is given to a worker",
    ),
    SupportedArgument("LearningRateScheduler", _EVERYWHERE),
    SupportedArgument(
        "ModelCheckpoint",
        (_YES, _YES, _REFUSED),
        "give trainer.checkpoint instead, which saves each device's part of the model",
    ),
    SupportedArgument(
        "OrbaxCheckpoint", _NOWHERE, "give output_dir or trainer.checkpoint, or use ModelCheckpoint"
    ),
    SupportedArgument("ProgbarLogger", _EVERYWHERE),
    SupportedArgument("ReduceLROnPlateau", _EVERYWHERE),
    SupportedArgument("RemoteMonitor", _EVERYWHERE),
    SupportedArgument(
        "SwapEMAWeights",
        (_YES, _REFUSED, _REFUSED),
        "servers refuse use_ema, which it needs; in a module averages are evaluated in any case",
    ),
    SupportedArgument(
        "TensorBoard",
        (_YES, _YES, _DIFFERS),
        "with ModelSplit give write_graph=False, and no histograms, images or embeddings",
    ),
    SupportedArgument("TerminateOnNaN", _EVERYWHERE, "without it, such a loss raises"),
)
