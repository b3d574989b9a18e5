"""The two images, and a hash of everything that goes into each: the key of its place in the cache.

The hash is taken over the files that the Dockerfile copies for a target, so a change in the
operator leaves the trainer's image where it is.
"""

import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IGNORED_FOLDERS = {"__pycache__"}


@dataclass(frozen=True)
class Target:
    """One target of the Dockerfile."""

    name: str
    sources: tuple[str, ...]

    @property
    def version(self) -> str:
        """The version of the distribution that the image carries."""
        text = (ROOT / self.name / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])

    @property
    def repository(self) -> str:
        """The image's name without its tag, as the chart's defaults have it."""
        return f"tfparallel/{self.name}"

    @property
    def reference(self) -> str:
        """The image's name with its tag."""
        return f"{self.repository}:{self.version}"

    def fingerprint(self, base: str) -> str:
        """A hash of the base and of the content of every source."""
        digest = hashlib.sha256(base.encode())
        for file in self._files():
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            digest.update(f"{file.relative_to(ROOT)}\0{content}\n".encode())
        return digest.hexdigest()[:16]

    def _files(self) -> Iterator[Path]:
        for source in ("Dockerfile", ".dockerignore", "requirements/build.txt", *self.sources):
            path = ROOT / source
            found = [path] if path.is_file() else path.rglob("*")
            for file in sorted(found):
                if file.is_file() and not IGNORED_FOLDERS.intersection(file.parts):
                    yield file


OPERATOR = Target("operator", ("requirements/operator.txt", "operator", "trainer"))
TRAINER = Target("trainer", ("requirements/trainer.txt", "requirements/examples.txt", "trainer"))
TARGETS = {target.name: target for target in (OPERATOR, TRAINER)}
