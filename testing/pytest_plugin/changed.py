"""Which tests a change selects, as `make test-changed` runs them.

- A test within this process: when its module's imports reach a changed file.
- A test that starts processes or a cluster: when its module imports a changed file by itself, or
  when its processes ran it in the last `make test-long` (testing/footprints.py), or, where that
  is not known, when RUNS says that they may. What only decides (`core`, `api`) is tested in the
  unit tier; of the tests that carry decisions out, those in CARRIED_OUT run.
- Every test: when its source names a changed file, which is how tests find pages, examples and
  manifests; when a conftest or model of its folder has changed; and when EVERYTHING has.
"""

import dataclasses
import functools
import pathlib
import subprocess

from testing import footprints
from testing.pytest_plugin import graph

OPERATOR = "operator/tfparallel_operator/"
ENGINE = (f"{OPERATOR}api_server/", f"{OPERATOR}engine/", f"{OPERATOR}main.py", "manifests/")
LOCAL = ("client/",)
TRAINER = ("trainer/",)

EVERYTHING = (
    "trainer/tfparallel_trainer/contract/",
    "requirements/",
    "pyproject.toml",
    "client/pyproject.toml",
    "operator/pyproject.toml",
    "trainer/pyproject.toml",
    "Dockerfile",
    "testing/",
    "tests/conftest.py",
)
"""What changes every test."""

RECORDS = ("testing/durations.json", "testing/footprints.json", "docs/benchmarks/long-tier.md")
"""What a run writes about itself, and changes no test."""

RUNS = {
    "tests/trainer/": TRAINER,
    "tests/benchmarks/": (*TRAINER, "benchmarks/"),
    "tests/examples/": (*TRAINER, *LOCAL, "examples/"),
    "tests/client/": (*TRAINER, *LOCAL),
    "tests/operator/api_server/": ENGINE,
    "tests/operator/engine/": ENGINE,
    "tests/operator/api/": ("manifests/",),
    "tests/charts/": ("charts/", "manifests/", "examples/"),
    "tests/e2e/": (*TRAINER, *ENGINE, "charts/", "examples/", "images/"),
    "tests/testing/": ("images/",),
    "tests/docs/": ("docs/", "mkdocs.yml", "examples/", "charts/", *LOCAL),
    "tests/release/": ("charts/", "manifests/", "release/", "VERSION", "CHANGELOG.md"),
}
"""What runs in the processes, pods and clusters of a folder's tests."""

CARRIED_OUT = {
    f"{OPERATOR}core/": (
        "tests/operator/engine/test_life.py",
        "tests/client/backends/local/test_process",
    ),
    f"{OPERATOR}api/": ("tests/operator/engine/test_life.py", "tests/operator/api/test_crd"),
}
"""The tests with processes or a cluster that run when a pure package has changed."""

STARTERS = ("testing/trainer/launch.py", "testing/trainer/processes.py")
"""Whoever imports these starts trainer processes."""


@dataclasses.dataclass(frozen=True)
class Changes:
    """The files of a repository that have changed."""

    root: pathlib.Path
    files: frozenset[str]
    """Their paths below the root."""

    @classmethod
    def since_main(cls, root: pathlib.Path) -> "Changes":
        """What differs from the last common commit with main; uncommitted and new files too."""
        base = _merge_base(root)
        changed = _git(root, "diff", "--name-only", "--no-renames", base).splitlines()
        new = _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
        return cls(root, frozenset({*changed, *new} - set(RECORDS)))

    def select_everything(self) -> bool:
        """Whether any test may be affected."""
        return any(file.startswith(EVERYTHING) for file in self.files)

    def select_file(self, file: pathlib.Path) -> bool:
        """Whether any test of this file may be selected."""
        return self.select_test(file, starts=False) or self.select_test(file, starts=True)

    @functools.cache  # noqa: B019 - there is one for each run
    def select_test(self, file: pathlib.Path, *, starts: bool) -> bool:
        """Whether a test of this file is selected, which starts processes or a cluster, or not."""
        if self.select_everything() or self._has_changed_around(file):
            return True
        starts = starts or bool(self._paths(graph.files_reached(file)) & set(STARTERS))
        return self._has_changed_below(file) if starts else self._has_changed_within(file)

    def _has_changed_around(self, file: pathlib.Path) -> bool:
        """Whether the source names a changed file, or its folder's common files have changed."""
        text = file.read_text(encoding="utf-8")
        if any(pathlib.PurePath(changed).name in text for changed in self.files):
            return True
        folders = self._paths(frozenset(file.parents))
        shared = {f"{folder}/conftest.py" for folder in folders}
        models = file.parent.relative_to(self.root).as_posix() + "/models/"
        return bool(shared & self.files) or any(name.startswith(models) for name in self.files)

    def _has_changed_within(self, file: pathlib.Path) -> bool:
        return bool(self._paths(graph.files_reached(file)) & self.files)

    def _has_changed_below(self, file: pathlib.Path) -> bool:
        if self._paths(frozenset({file, *graph.named_files(file)})) & self.files:
            return True
        path = file.relative_to(self.root).as_posix()
        runs = tuple(part for prefix in RUNS if path.startswith(prefix) for part in RUNS[prefix])
        if self._has_changed_in_processes(path) is False:
            runs = tuple(part for part in runs if part not in TRAINER)
        carried = tuple(part for part, tests in CARRIED_OUT.items() if path.startswith(tests))
        return any(name.startswith((*runs, *carried)) for name in self.files)

    def _has_changed_in_processes(self, test: str) -> bool | None:
        """Whether its processes run a file of the trainer that has changed; None if not known."""
        ran = [footprints.may_run(test, file) for file in self.files if file.startswith(TRAINER)]
        return None if None in ran else any(ran)

    def _paths(self, files: frozenset[pathlib.Path]) -> frozenset[str]:
        inside = (file for file in files if file.is_relative_to(self.root))
        return frozenset(file.relative_to(self.root).as_posix() for file in inside)


def _merge_base(root: pathlib.Path) -> str:
    for branch in ("origin/main", "main"):
        answer = subprocess.run(
            ["git", "merge-base", "HEAD", branch],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        if answer.returncode == 0:
            return answer.stdout.strip()
    raise LookupError("There is neither a branch origin/main nor main to compare with.")


def _git(root: pathlib.Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
    ).stdout
