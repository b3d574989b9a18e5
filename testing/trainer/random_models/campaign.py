"""Runs many random jobs, some at a time."""

import itertools
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent import futures

from testing.trainer.random_models import drawing, judging, outcomes
from tfparallel_trainer.contract import job_file


def run(
    seed: int,
    numbers: Iterable[int],
    parallel: int,
    verify: job_file.Verify = job_file.Verify.AUTO,
) -> Iterator[list[outcomes.Outcome]]:
    """Run the jobs of models by their numbers; gives the outcomes of a model as it ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="random-models-"))
    remaining = iter(numbers)
    try:
        with futures.ThreadPoolExecutor(parallel) as pool:
            running = {
                pool.submit(_run_model, seed, number, folder, verify)
                for number in itertools.islice(remaining, parallel)
            }
            while running:
                ended, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for future in ended:
                    yield future.result()
                for number in itertools.islice(remaining, len(ended)):
                    running.add(pool.submit(_run_model, seed, number, folder, verify))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_model(
    seed: int, number: int, folder: pathlib.Path, verify: job_file.Verify
) -> list[outcomes.Outcome]:
    """Run the jobs of one model."""
    jobs = drawing.draw_jobs(seed, number)
    verdicts = judging.judge_all(jobs, folder / f"{seed}-{number}", verify)
    return [
        outcomes.Outcome(
            number,
            layout_number,
            str(job.layout),
            verdict.ending,
            verdict.detail,
            verdict.difference,
        )
        for layout_number, (job, verdict) in enumerate(zip(jobs, verdicts, strict=True))
    ]
