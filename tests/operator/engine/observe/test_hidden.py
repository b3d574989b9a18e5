"""How often objects without their label are read, of all namespaces together and of each."""

import asyncio
import collections
from collections.abc import Mapping
from typing import Any

import pytest

from testing import waiting
from testing.operator import memory_api, objects
from tfparallel_operator.api_server import resources
from tfparallel_operator.engine.observe import hidden, index

CROWD = 1_000


class Followed:
    """Takes objects in."""

    served = resources.PODS

    def __init__(self) -> None:
        self.values: dict[index.Key, str] = {}

    def put(self, item: Mapping[str, Any]) -> None:
        self.values[index.find_key(item)] = item["metadata"]["uid"]

    def drop(self, key: index.Key) -> None:
        self.values.pop(key, None)


async def test_pods_of_one_namespace_do_not_delay_the_reads_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: collections.Counter[float] = collections.Counter()
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        pauses[seconds] += bool(seconds)
        await sleep(seconds)

    api, followed = memory_api.MemoryApi(), Followed()
    reader = hidden.Hidden(api, followed)
    pods = [("crowd", f"pod-{number}") for number in range(CROWD)]
    uids = {}
    for namespace, name in (*pods, ("other", "pod")):
        manifest = objects.pod(name)
        del manifest["metadata"]["namespace"]
        created = await api.create(resources.PODS, namespace, manifest)
        uids[namespace, name] = created["metadata"]["uid"]
    monkeypatch.setattr(asyncio, "sleep", note)
    for key, uid in uids.items():
        reader.add(key, uid)
    await waiting.idle()
    assert followed.values == uids
    assert +pauses == {hidden.SECONDS: 1, 2 * CROWD / hidden.A_SECOND: CROWD}
    reader.remove_all("crowd")
    assert reader.keys() == {("other", "pod")}
    reader.remove_all(None)
    assert reader.keys() == set()


def test_objects_are_read_at_a_bounded_rate() -> None:
    assert hidden.find_pause(1, 1) == hidden.SECONDS
    assert 10_000 / hidden.find_pause(10_000, 1) == hidden.A_SECOND
    assert 2 * 5_000 / hidden.find_pause(5_000, 2) == hidden.A_SECOND
