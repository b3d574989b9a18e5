"""What kubectl says while it follows something is not lost, and its end is noticed."""

from pathlib import Path

import pytest

from testing import waiting
from testing.cluster import handle
from testing.e2e import kubectl_namespaces

pytestmark = pytest.mark.usefixtures("processes")

WAITING = 'echo "container tensorflow is waiting to start" >&2; exit 1'
ANSWER = """
case "$*" in
*watch=1*) echo "connection refused" >&2; exit 1 ;;
*) echo '{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"resourceVersion": "2"}}]}'
esac
"""


def namespace(folder: Path, script: str) -> kubectl_namespaces.KubectlNamespace:
    """A namespace whose kubectl is a script."""
    kubectl = folder / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{script}\n")
    kubectl.chmod(0o755)
    cluster = handle.Cluster("none", "full", folder / "config", kubectl, folder / "helm", folder)
    return kubectl_namespaces.KubectlNamespace(cluster, "here")


def test_a_log_is_followed_again_when_its_container_was_not_there_yet(tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = f"[ -e {once} ] || {{ touch {once}; {WAITING}; }}; echo up; echo down"
    log = tmp_path / "log"
    with namespace(tmp_path, script).following("pod", log) as follower:
        assert log.read_text().startswith("up")
    assert log.read_text() == "up\ndown\n"
    assert "waiting to start" in follower.complaints()


def test_a_log_that_never_comes_is_awaited_in_vain_for_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubectl_namespaces, "GONE_SECONDS", 3.0)
    follower = namespace(tmp_path, WAITING).following("pod", tmp_path / "log")
    with pytest.raises(waiting.TimedOutError, match="is waiting to start"), follower:
        raise AssertionError("it has said nothing")


def test_a_watch_that_ends_too_early_says_why(tmp_path: Path) -> None:
    watch = namespace(tmp_path, ANSWER).watching(tmp_path / "seen")
    with pytest.raises(AssertionError, match="the watch has ended: connection refused"), watch:
        pass
