"""What can be known before TensorFlow is imported: refusals, and that there is nothing to do."""

import pydantic

from tfparallel_trainer import errors, settings
from tfparallel_trainer.contract import outputs

_STRATEGIES = ("Mirrored", "MultiWorkerMirrored")


def check(given: settings.Settings) -> None:
    """Refuse what can be seen to be impossible before anything is started.

    Raises:
        BadConfigurationError: strategy and cluster do not fit each other.
    """
    strategy, processes = given.job.strategy, len(given.cluster.tasks)
    if strategy not in _STRATEGIES:
        raise errors.BadConfigurationError(
            f"strategy is {strategy!r}: this trainer runs {' and '.join(_STRATEGIES)}."
        )
    if strategy == "Mirrored" and processes > 1:
        raise errors.BadConfigurationError(
            f"strategy is 'Mirrored', which is for one process, and TF_CONFIG has {processes}: "
            "use MultiWorkerMirrored, or one replica."
        )


def finished(given: settings.Settings) -> bool:
    """Whether this very job has already been run to its end in this output directory."""
    try:
        text = (given.output_dir / outputs.SUMMARY).read_text(encoding="utf-8")
        summary = outputs.Summary.model_validate_json(text)
    except (OSError, pydantic.ValidationError):
        return False
    return summary.done and summary.job_digest == given.digest
