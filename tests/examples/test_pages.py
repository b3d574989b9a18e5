"""The page of each example shows what its commands print on this machine, whatever the figures."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from testing import buckets, pages, paths
from testing.operator import local_jobs as jobs

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.timeout(1800)]

LONG = {
    # Other tests of this folder train these, with more questions.
    *("custom-strategy", "digits", "digits-servers", "fit", "mnist", "old-coordinator", "old-fit"),
    *("split-cnn", "split-decoder", "split-deep-cnn", "split-embedding", "split-two-models"),
    "tf-config",
    "bucket",  # as the job of the page on buckets
    # On this machine they are like digits: a cluster shows what they are about.
    *("elastic", "gang", "gpu-class", "queue"),
    "image-classifier",  # minutes
    # Tests of the trainer have layers that do not train, records and low precision; the evaluator
    # runs beside digits-servers.
    *("fine-tuning", "mixed-precision", "tfrecords"),
}
EXAMPLES = sorted({file.parent.name for file in paths.example_jobs()})
TOKENS = {
    "…": ".*",
    r"\s+": r"\s+",
    r"(?:\d+(?:us|ms|s|m|h))+(?![a-z])": r"(?:\d+(?:us|ms|s|m|h))+",
    r"\d[\d.]*(?:e[+-]?\d+)?": r"\d[\d.]*(?:e[+-]?\d+)?",
}
"""What may differ from run to run, and the pattern that takes its place."""
SPEED = re.compile(r"  [\d.]+ examples/s|  ETA [\dhms]+")
"""They stand only in lines on several steps."""
TOKEN = re.compile("|".join(f"({token})" for token in TOKENS))


def pattern(line: str) -> str:
    """Return a pattern for lines like this one: with other figures, and anything for `…`."""
    parts = []
    end = 0
    for match in TOKEN.finditer(line):
        parts += [
            re.escape(line[end : match.start()]),
            [*TOKENS.values()][(match.lastindex or 1) - 1],
        ]
        end = match.end()
    return "".join([*parts, re.escape(line[end:])])


def test_lines_are_compared_by_their_shape() -> None:
    shown = pattern("[chief-0] 23/23 - 2s - loss: 2.0205 - val_accuracy: …")
    assert re.fullmatch(shown, "[chief-0] 7/9 - 1m4s - loss: 1e-05 - val_accuracy: 0.9 - x: 3")
    assert not re.fullmatch(shown, "[worker-0] 7/9 - 1s - loss: 0.1 - val_accuracy: 0.9")
    assert not re.fullmatch(shown, "[chief-0] 7/9 - 1s - loss: nan - val_accuracy: 0.9")


@pytest.fixture
def folder(example: str, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    """A folder with a copy of the example, made ready as its page says."""
    copy = tmp_path / "examples" / example
    shutil.copytree(paths.EXAMPLES / example, copy)
    if example == "bucket":
        bucket: buckets.Bucket = request.getfixturevalue("s3")
        for name in ("job.yaml", "README.md"):
            text = (copy / name).read_text(encoding="utf-8")
            (copy / name).write_text(text.replace("my-bucket", bucket.name), encoding="utf-8")
        variables = (f"{name}={value}\n" for name, value in bucket.variables.items())
        (copy / "bucket.env").write_text("".join(variables))
    return tmp_path


def follow(line: str, folder: pathlib.Path) -> str:
    """Return what a command of a page prints, on either stream."""
    program, *arguments = line.split()
    command = [sys.executable, *(["-m", program] if program == "tfparallel" else []), *arguments]
    if program == "tfparallel":
        file = folder / arguments[1]
        spec = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
        if "trainer" not in spec and "PS" not in spec["tfReplicaSpecs"]:
            command += jobs.ending_together(file, folder)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "COLUMNS": "400"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


@pytest.mark.parametrize(
    "example",
    [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in EXAMPLES],
)
def test_an_example_prints_what_its_page_shows(example: str, folder: pathlib.Path) -> None:
    blocks = pages.blocks(folder / "examples" / example / "README.md", "console")
    commands = [command for block in blocks for command in pages.commands(block)]
    here = [
        command
        for command in commands
        if command.line.startswith(("tfparallel run examples/", "python "))
    ]
    assert here
    for command in here:
        printed = follow(command.line, folder)
        lines = [SPEED.sub("", line).rstrip() for line in printed.splitlines()]
        for shown in command.shown:
            expected = re.compile(pattern(SPEED.sub("", shown).rstrip()))
            assert any(map(expected.fullmatch, lines)), f"{shown}\n{printed}"
