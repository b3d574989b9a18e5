"""The two images of the Dockerfile and their names."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_REGISTRY = "docker.io/library"
"""Where Kubernetes and Docker look for a name without a registry."""

_PATH = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_REGISTRY = re.compile(rf"[a-zA-Z0-9.-]+(?::[0-9]+)?(?:/{_PATH})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True)
class Target:
    """One target of the Dockerfile."""

    name: str
    sources: tuple[str, ...]
    """What the Dockerfile copies for it."""

    @property
    def repository(self) -> str:
        """The image's name without registry and tag, as the chart's defaults have it."""
        return f"tfparallel-{self.name}"

    @property
    def reference(self) -> str:
        """The image's name with its tag, as the chart's defaults have it."""
        return f"{self.repository}:{version()}"

    def full_reference(self, registry: str, tag: str) -> str:
        """Return the image's name in a registry; without one, the name that Kubernetes expands
        `reference` to."""
        return f"{registry or DEFAULT_REGISTRY}/{self.repository}:{tag or version()}"


OPERATOR = Target("operator", ("requirements/operator.txt", "operator", "trainer"))
TRAINER = Target("trainer", ("requirements/trainer.txt", "requirements/examples.txt", "trainer"))
TARGETS = {target.name: target for target in (OPERATOR, TRAINER)}


def version() -> str:
    """Return the version of all that is released."""
    return (ROOT / "VERSION").read_text(encoding="utf-8").strip()


def parse_registry(text: str) -> str:
    """Return a registry with its host; a name without one is an account of Docker Hub.

    Raises:
        ValueError: it is no registry.
    """
    if not text:
        return ""
    if not _REGISTRY.fullmatch(text):
        raise ValueError(
            f"REGISTRY is {text!r}: write a host and a path, such as registry.example/team"
        )
    host = text.partition("/")[0]
    return text if "." in host or ":" in host or host == "localhost" else f"docker.io/{text}"


def parse_tag(text: str) -> str:
    """Return a tag.

    Raises:
        ValueError: it is none.
    """
    if text and not _TAG.fullmatch(text):
        raise ValueError(f"TAG is {text!r}: write letters, digits, '_', '.' and '-'")
    return text
