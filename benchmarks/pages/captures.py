"""`python -m benchmarks.pages.captures`: runs the command and writes docs/reference/captures.md.

Each command runs in a terminal of 80 columns. What it prints becomes a block of text, which readers
can search and copy, and a diff shows what changed; pictures would do neither. The part `cluster`
needs root or Docker, and the images.
"""

import contextlib
import dataclasses
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from benchmarks.operators import arena
from testing import pages, paths, screens
from testing.cluster import binaries, settings
from testing.e2e import kubectl_namespaces, operator, terminal, volumes

PAGE = paths.PAGES / "reference/captures.md"
JOB = "examples/digits/job.yaml"
EPOCHS = 200
"""Of the job on the cluster: it has to train while several commands look at it."""

HEAD, TAIL = 8, 24
"""Lines of a capture that stay; what is between them is left out."""

TFJOB = paths.ROOT / "tests/client/tfjobs/dist-mnist.yaml"
"""What `convert` is shown with."""

LEFT_OUT = "…"
CONTEXT = "test"
LIMIT_SECONDS = 600.0


@dataclasses.dataclass(frozen=True)
class Change:
    """What is different in a file of a variant of the example."""

    file: str
    old: str
    new: str


VARIANTS = {
    "large": (
        Change("job.yaml", "memory: 768Mi", "memory: 512Gi"),
        Change("job.yaml", "memory: 2Gi", "memory: 512Gi"),
        Change("job.yaml", "    Worker:\n", "    Worker:\n      maxReplicas: 3\n"),
    ),
    "broken": (Change("model.py", "from sklearn", "from sklearm"),),
    "wrong": (Change("job.yaml", "epochs: 10", "epochs: ten"),),
}
MACHINE = (
    "init",
    "validate",
    "run",
    "get-model-here",
    "tensorboard",
    "run-failed",
    "plan",
    "compare",
    "rehearse",
    "convert",
    "completion",
)
CLUSTER = ("doctor", "trains", "succeeded", "waits", "failed", "changes")
"""The blocks of the page, by the part that writes them."""

CHANGES = (
    "scale large --workers 3",
    "suspend large",
    "status large",
    "resume large",
    "delete large",
)


@dataclasses.dataclass(frozen=True)
class Capture:
    """A command, and what a terminal shows of it."""

    line: str
    shown: Sequence[str]

    def block(self) -> str:
        """Return it as a block of a page."""
        shown = [*self.shown]
        if len(shown) > HEAD + TAIL + 1:
            shown = [*shown[:HEAD], LEFT_OUT, *shown[-TAIL:]]
        return "\n".join(["```console", f"$ {self.line}", *shown, "```", ""])


Sections: TypeAlias = Iterator[tuple[str, Sequence[Capture]]]
"""The names of blocks of the page, and their captures."""


class Desk:
    """A folder with examples, and terminals in it."""

    def __init__(self, folder: pathlib.Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        programs = pathlib.Path(sys.executable).parent
        self._environment = {**environment, "PATH": f"{programs}:{environment['PATH']}"}
        digits = folder / pathlib.PurePath(JOB).parent
        shutil.copytree(paths.EXAMPLES / digits.name, digits)
        for variant, changes in VARIANTS.items():
            _vary(digits, folder / variant, changes)
        shutil.copy(TFJOB, folder / "tfjob.yaml")

    @contextlib.contextmanager
    def open(self, line: str) -> Iterator[screens.Recording]:
        """Run a command, and look at it meanwhile."""
        command = shlex.split(line)
        with screens.recorded(command, self.folder, self._environment) as recording:
            yield recording

    def capture(self, line: str) -> Capture:
        """Run a command to its end."""
        with self.open(line) as recording:
            recording.wait(LIMIT_SECONDS)
            return Capture(line, self.shown(recording))

    def shown(self, recording: screens.Recording) -> list[str]:
        """Return what a terminal shows, without the name of the folder."""
        return screens.render(recording.output.replace(f"{self.folder}/", ""))


def _vary(origin: pathlib.Path, variant: pathlib.Path, changes: Sequence[Change]) -> None:
    """Copy an example under another name, with changes."""
    shutil.copytree(origin, variant)
    field = "metadata:\n  name: "
    name = Change("job.yaml", f"{field}{origin.name}", f"{field}{variant.name}")
    for change in (name, *changes):
        file = variant / change.file
        text = file.read_text(encoding="utf-8")
        if change.old not in text:
            raise ValueError(
                f"{origin / change.file}: lacks {change.old!r}, which a capture changes"
            )
        file.write_text(text.replace(change.old, change.new), encoding="utf-8")


def _follow(desk: Desk, line: str, moment: str) -> tuple[Capture, Capture]:
    """Run a command to its end; return what is shown once a text is, and in the end."""
    with desk.open(line) as recording:
        recording.wait_for(moment, LIMIT_SECONDS)
        meanwhile = Capture(line, desk.shown(recording))
        recording.wait(LIMIT_SECONDS)
        return meanwhile, Capture(line, desk.shown(recording))


def machine(desk: Desk) -> Sections:
    """Yield the captures of this machine."""
    yield "init", [desk.capture("tfparallel init split --way model-split")]
    checks = [desk.capture(f"tfparallel validate {file}") for file in (JOB, "wrong/job.yaml")]
    yield "validate", checks
    yield "run", _follow(desk, f"tfparallel run {JOB}", " ETA ")
    yield "get-model-here", [desk.capture("tfparallel get model runs/digits")]
    yield "tensorboard", [_look_at_curves(desk, "tfparallel tensorboard runs/digits")]
    yield "run-failed", [desk.capture("tfparallel run broken/job.yaml")]
    yield "plan", [desk.capture("tfparallel plan split/job.yaml")]
    yield "compare", [desk.capture(f"tfparallel compare {JOB} --epochs 2 --seeds 1")]
    yield "rehearse", [desk.capture(f"tfparallel rehearse {JOB} --kill worker-0@30 --mtbf 100")]
    yield "convert", [desk.capture("tfparallel convert --diff tfjob.yaml")]
    yield "completion", [desk.capture("tfparallel completion bash")]


def cluster(desk: Desk, namespace: kubectl_namespaces.KubectlNamespace) -> Sections:
    """Yield the captures of a cluster: a job trains, succeeds, waits, fails and is changed."""
    volumes.provide(namespace, "digits")
    yield "doctor", [desk.capture(f"tfparallel {verb}") for verb in ("version", "doctor")]
    line = f"tfparallel submit {JOB} --claim 1Gi --set spec.trainer.epochs={EPOCHS}"
    with desk.open(line) as recording:
        recording.wait_for(" ETA ", LIMIT_SECONDS)
        meanwhile = Capture(line, desk.shown(recording))
        yield "trains", [meanwhile, *_look(desk, "digits")]
        if namespace.job("digits")["status"]["state"] != "Running":
            raise RuntimeError(f"digits ended while it was looked at: raise EPOCHS ({EPOCHS})")
        recording.wait(LIMIT_SECONDS)
        finished = Capture(line, desk.shown(recording))
    yield "succeeded", [finished, *_look(desk, "digits")]
    yield "waits", [_leave(desk, "tfparallel submit large/job.yaml"), *_look(desk, "large")]
    failed = desk.capture("tfparallel submit broken/job.yaml")
    yield "failed", [failed, *_look(desk, "broken")]
    yield "changes", [desk.capture(f"tfparallel {change}") for change in CHANGES]


def _look_at_curves(desk: Desk, line: str) -> Capture:
    """Show TensorBoard, and end it by Ctrl-C."""
    with desk.open(line) as recording:
        recording.wait_for("Ctrl-C ends it", LIMIT_SECONDS)
        recording.interrupt()
        recording.wait(LIMIT_SECONDS)
        return Capture(line, desk.shown(recording))


def _look(desk: Desk, job: str) -> Iterator[Capture]:
    """Run each verb that shows a job."""
    for verb in ("status", f"status {job}", f"why {job}", f"logs {job} --tail 8", f"events {job}"):
        yield desk.capture(f"tfparallel {verb}")
    yield desk.capture(f"tfparallel get model {job}")


def _leave(desk: Desk, line: str) -> Capture:
    """Follow a job that waits, press Ctrl-C, and leave it."""
    with desk.open(line) as recording:
        recording.wait_for("Insufficient", LIMIT_SECONDS)
        recording.interrupt()
        recording.wait_for("Leave it running", LIMIT_SECONDS)
        recording.type("leave")
        recording.wait(LIMIT_SECONDS)
        return Capture(line, desk.shown(recording))


@contextlib.contextmanager
def _on_machine() -> Iterator[Sections]:
    with tempfile.TemporaryDirectory(prefix="captures-") as folder:
        yield machine(Desk(pathlib.Path(folder).resolve(), os.environ))


@contextlib.contextmanager
def _on_cluster() -> Iterator[Sections]:
    kind = settings.Full() if os.geteuid() == 0 else settings.Kind()
    binaries.ensure(binaries.FULL)
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(arena.cluster("captures", kind))
        stack.enter_context(operator.running(running))
        make = stack.enter_context(kubectl_namespaces.maker(running))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="captures-"))
        namespace = make("team")
        root = pathlib.Path(folder).resolve()
        shell = terminal.shell(namespace, root)
        if (name := shell.run("kubectl config current-context").strip()) != CONTEXT:
            shell.run(f"kubectl config rename-context {name} {CONTEXT}")
        work = root / "work"
        work.mkdir()
        yield cluster(Desk(work, shell.environment), namespace)


PARTS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Sections]]] = {
    "machine": _on_machine,
    "cluster": _on_cluster,
}


def _write(name: str, captures: Sequence[Capture]) -> None:
    """Replace a block of the page."""
    page = PAGE.read_text(encoding="utf-8")
    content = "\n" + "\n".join(capture.block() for capture in captures) + "\n"
    PAGE.write_text(pages.with_section(page, name, content), encoding="utf-8")
    print(f"wrote {name} in {PAGE}", flush=True)


def main() -> None:
    """Write the captures of this machine and of a cluster, or those of the part that is named."""
    for part in sys.argv[1:] or PARTS:
        with PARTS[part]() as captured:
            for name, captures in captured:
                _write(name, captures)


if __name__ == "__main__":
    main()
