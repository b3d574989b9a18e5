"""What the command line of random jobs does."""

import argparse
import pathlib
import tempfile

from testing.trainer.random_models import (
    campaign,
    drawing,
    judging,
    module_source,
    outcomes,
    shrinking,
    spec,
)
from tfparallel_trainer.contract import job_file


def run(options: argparse.Namespace) -> int:
    """Do what the options ask for; returns the exit code."""
    if options.job:
        print(module_source.write_job(_job(options.seed, options.job)))
        return 0
    if options.shrink:
        job = _job(options.seed, options.shrink)
        print(module_source.write_job(shrinking.shrink(job, judging.run_to_failure, print)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = options.resume or pathlib.Path(folder) / "state.jsonl"
        state = outcomes.CampaignFile.open(path, options.seed)
        numbers = state.failed() if options.again else state.remaining(options.jobs)
        print(f"seed {state.seed}: {len(numbers)} models to run", flush=True)
        verify = job_file.Verify(options.verify)
        for ended in campaign.run(state.seed, numbers, options.parallel, verify):
            state.add(ended)
            print("\n".join(map(str, ended)), flush=True)
        return _report(state)


def _job(seed: int, name: str) -> spec.Job:
    model, _, layout_number = name.partition(".")
    return drawing.draw_jobs(seed, int(model))[int(layout_number or 0)]


def _report(state: outcomes.CampaignFile) -> int:
    for ending, count in outcomes.counts(state.outcomes).items():
        print(f"{ending}: {count}")
    failures = [outcome for outcome in state.outcomes if outcome.ending.is_failure]
    print("\n".join(map(str, failures)))
    return 1 if failures else 0
