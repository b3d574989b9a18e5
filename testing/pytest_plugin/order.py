"""Shares files out among the workers of pytest-xdist, longest first.

`durations.json` has the seconds of each file; `make test-durations` writes it from the last run.
"""

import collections
import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from xdist.scheduler import loadscope

from testing import paths

DURATIONS = paths.ROOT / "testing/durations.json"
UNKNOWN_SECONDS = 30
"""Of a file that no run has measured."""

REAL_PODS = "real pods"
WITH_REAL_PODS = ("tests/e2e/", "tests/testing/test_cluster_full")


class Scopes(loadscope.LoadScopeScheduling):  # type: ignore[misc]
    """A worker takes a file at a time; files with real pods are one, for they share a cluster."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scopes:
    return Scopes(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = longest_first((item.nodeid for item in items), durations())
    items.sort(key=lambda item: ranks[scope_of(item.nodeid)])


def scope_of(nodeid: str) -> str:
    """What one worker runs as a whole."""
    file = nodeid.partition("::")[0]
    return REAL_PODS if file.startswith(WITH_REAL_PODS) else file


def longest_first(nodeids: Iterable[str], seconds: Mapping[str, int]) -> dict[str, int]:
    """The place of each scope in the order."""
    lengths: dict[str, int] = collections.defaultdict(int)
    for file in dict.fromkeys(nodeid.partition("::")[0] for nodeid in nodeids):
        lengths[scope_of(file)] += seconds.get(file, UNKNOWN_SECONDS)
    ordered = sorted(lengths, key=lambda scope: (-lengths[scope], scope))
    return {scope: place for place, scope in enumerate(ordered)}


@functools.cache
def durations(file: pathlib.Path = DURATIONS) -> dict[str, int]:
    """The recorded seconds of each file."""
    content: dict[str, int] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return content
