"""The informer and the store of jobs: nothing is missed, nothing old comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from testing import waiting
from testing.operator import memory_api, memory_cluster, objects
from tfparallel_operator.api_server import answers, client, lists, resources
from tfparallel_operator.core import observation
from tfparallel_operator.engine.observe import informer, jobs, records, sweeper
from tfparallel_operator.engine.workqueue import queue

KEY = queue.Key("default", "digits")
JOB = records.Owner("default", "digits", objects.UID)


class FollowedPods:
    """An informer of pods on an API server in memory."""

    def __init__(self, namespaces: tuple[str, ...] = ()) -> None:
        self.api = memory_api.MemoryApi()
        self.reported: list[records.Owner] = []
        self.pods = informer.Informer(
            self.api, resources.PODS, namespaces, records.pod, self.reported.append
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(memory_cluster.follow(self.pods))
        await self.pods.wait_synced()
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def add(self, name: str, namespace: str = "default") -> client.Object:
        manifest = objects.pod(name)
        manifest["metadata"]["namespace"] = namespace
        return await self.api.create(resources.PODS, namespace, manifest)

    def names(self, uid: str = objects.UID, namespace: str = "default") -> list[str]:
        job = records.Owner(namespace, "digits", uid)
        return sorted(pod.name for pod in self.pods.for_owner(job))


async def test_objects_present_and_new_are_matched_by_the_jobs_uid() -> None:
    world = FollowedPods()
    await world.add("a")
    async with world.running():
        await world.add("b")
        await waiting.idle()
        assert world.names() == ["a", "b"]
        assert world.names("another-uid") == []
        world.api.remove(resources.PODS.path("default", "a"))
        await waiting.idle()
        assert world.names() == ["b"]
    assert world.reported == [records.Owner("default", "digits", objects.UID)] * 3


async def test_what_vanished_while_nobody_watched_is_removed_after_the_next_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(informer, "RETRY_SECONDS", (0.01, 0.01))
    world = FollowedPods()
    await world.add("a")
    await world.add("b")
    async with world.running():
        await waiting.idle()
        world.reported.clear()
        world.api.forgotten = world.api.version + 1
        world.api.remove(resources.PODS.path("default", "a"))
        await waiting.until_in_loop(world.names, "the next list", when=["b"].__eq__)
        await world.add("c")
        await waiting.idle()
        assert world.names() == ["b", "c"]
        assert {*world.reported} == {records.Owner("default", "digits", objects.UID)}


async def test_an_answer_to_a_write_is_known_before_the_watch_reports_it() -> None:
    world = FollowedPods()
    async with world.running():
        created = await world.add("a")
        world.pods.learn(created)
        assert world.names() == ["a"]


async def test_a_late_answer_does_not_bring_back_what_was_deleted() -> None:
    world = FollowedPods()
    async with world.running():
        created = await world.add("a")
        world.api.remove(resources.PODS.path("default", "a"))
        await waiting.idle()
        world.pods.learn(created)
        assert world.names() == []


async def test_a_list_that_is_older_than_a_write_does_not_remove_it() -> None:
    world = FollowedPods()
    async with world.running():
        listing = await world.api.list(resources.PODS, None)
        world.pods.learn(await world.add("a"))
        keys = {(item["metadata"]["namespace"], item["metadata"]["name"]) for item in listing.items}
        world.pods.keep(keys, int(listing.version), None)
        assert world.names() == ["a"]


async def test_what_a_list_has_reported_is_not_reported_again_by_the_watch() -> None:
    world = FollowedPods()
    first = await world.add("a")
    async with world.running():
        world.api.remove(resources.PODS.path("default", "a"))
        second = await world.add("a")
        await world.add("b")
        # The watch has not told of any of it yet.
        assert [pod.uid for pod in world.pods.for_owner(JOB)] == [first["metadata"]["uid"]]
        await world.pods.refresh()
        assert world.names() == ["a", "b"]
        world.reported.clear()
        await waiting.idle()
        assert world.reported == []
        assert second["metadata"]["uid"] in [pod.uid for pod in world.pods.for_owner(JOB)]
        world.api.remove(resources.PODS.path("default", "a"))
        await waiting.idle()
        assert world.names() == ["b"]


async def test_a_list_that_the_watch_has_overtaken_brings_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = FollowedPods()
    await world.add("a")
    async with world.running():
        answer = world.api.page

        async def late(*arguments: Any, **options: Any) -> lists.Listing:
            listing = await answer(*arguments, **options)
            world.api.remove(resources.PODS.path("default", "a"))
            await waiting.idle()
            return listing

        monkeypatch.setattr(world.api, "page", late)
        await world.pods.refresh()
        assert world.names() == []


async def test_a_list_that_the_watch_overtakes_while_it_is_taken_in_brings_nothing_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "PAGE", 1)
    world = FollowedPods()
    for name in ("a", "b"):
        await world.add(name)
    async with world.running():
        take = world.pods.take

        def late(pods: Any, version: int) -> bool:
            was_rewound = take(pods, version)
            if [key for key, *_ in pods] == [("default", "a")]:
                world.api.remove(resources.PODS.path("default", "b"))
                world.pods.drop(("default", "b"))
                [stream] = world.pods._streams.values()
                stream.version = world.api.version
            return was_rewound

        monkeypatch.setattr(world.pods, "take", late)
        await world.pods.refresh()
        assert world.names() == ["a"]


async def test_a_list_is_read_page_by_page() -> None:
    world = FollowedPods()
    world.api.page_size = 2
    for number in range(5):
        await world.add(f"pod-{number}")
    async with world.running():
        assert world.names() == [f"pod-{number}" for number in range(5)]


async def test_only_the_watched_namespaces_are_followed() -> None:
    world = FollowedPods(("one", "two"))
    for namespace in ("one", "two", "three"):
        await world.add(f"pod-{namespace}", namespace)
    async with world.running():
        names_by_namespace = {name: world.names(namespace=name) for name in ("one", "two", "three")}
        assert names_by_namespace == {"one": ["pod-one"], "two": ["pod-two"], "three": []}
        world.pods.keep(set(), world.api.version, "one")
        assert world.names(namespace="one") == []
        assert world.names(namespace="two") == ["pod-two"]


async def test_a_pod_that_changes_hands_leaves_its_former_job() -> None:
    world = FollowedPods()
    world.pods.put(objects.pod(version=1))
    raw = objects.pod(version=2, uid="other")
    raw["metadata"]["ownerReferences"] = [objects.owner(uid="new-uid")]
    world.pods.put(raw)
    assert world.names() == []
    assert world.names("new-uid") == ["digits-worker-0"]
    del raw["metadata"]["ownerReferences"]
    world.pods.put({**raw, "metadata": {**raw["metadata"], "resourceVersion": "3"}})
    assert world.names("new-uid") == []


async def test_an_older_version_does_not_replace_a_newer_one() -> None:
    world = FollowedPods()
    world.pods.put(objects.pod(version=5, phase="Running"))
    world.pods.put(objects.pod(version=4, phase="Pending"))
    assert [pod.phase for pod in world.pods.for_owner(JOB)] == [observation.Phase.RUNNING]


async def test_what_the_watch_repeats_of_an_answer_is_not_looked_into_again() -> None:
    looks: list[int] = []

    def look(item: Mapping[str, Any]) -> observation.Pod | None:
        looks.append(int(item["metadata"]["resourceVersion"]))
        return records.pod(item)

    pods = informer.Informer(memory_api.MemoryApi(), resources.PODS, (), look, lambda _: None)
    for version in (1, 1, 2):
        pods.put(objects.pod(version=version))
    assert looks == [1, 2]


async def test_silence_is_the_time_since_anything_was_heard_or_tried() -> None:
    world = FollowedPods()
    async with world.running():
        now = asyncio.get_running_loop().time()
        assert world.pods.silence(now + 50) >= 49


def _body(version: int, uid: str = "uid-1", **more: Any) -> dict[str, Any]:
    metadata = {"name": "digits", "namespace": "default", "uid": uid}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, **more}


async def test_the_newest_version_of_a_job_is_kept_from_any_source() -> None:
    work: queue.Queue[queue.Key] = queue.Queue()
    store = jobs.Jobs(work)
    store.apply_event("ADDED", _body(1))
    store.update(_body(3, status={"attempt": 1}))
    store.apply_event("MODIFIED", _body(2))
    assert store.get(KEY) == _body(3, status={"attempt": 1})
    assert await work.get() == KEY


async def test_an_answer_cannot_bring_back_a_deleted_job_or_overwrite_its_successor() -> None:
    store = jobs.Jobs(queue.Queue())
    store.apply_event("ADDED", _body(1))
    store.apply_event("DELETED", _body(4))
    store.update(_body(3))
    assert store.get(KEY) is None
    store.apply_event("ADDED", _body(5, uid="uid-2"))
    store.update(_body(9, uid="uid-1"))
    assert store.get(KEY) == _body(5, uid="uid-2")
    store.forget(KEY, "uid-1")
    assert store.get(KEY) == _body(5, uid="uid-2")
    store.forget(KEY, "uid-2")
    assert store.get(KEY) is None


async def test_a_page_that_is_older_than_a_deletion_does_not_bring_the_job_back() -> None:
    store = jobs.Jobs(queue.Queue())
    store.apply_event("ADDED", _body(1))
    store.apply_event("DELETED", _body(9))
    store.add_page([_body(1)], 8)
    assert store.get(KEY) is None
    store.keep({KEY}, 8, None)
    store.add_page([_body(10, uid="uid-2")], 11)
    assert store.get(KEY) is not None


async def test_a_sweep_removes_jobs_whose_deletion_was_missed() -> None:
    work: queue.Queue[queue.Key] = queue.Queue()
    store = jobs.Jobs(work)
    store.apply_event("ADDED", _body(1))
    newer = _body(8)
    newer["metadata"]["name"] = "newer"
    store.apply_event("ADDED", newer)
    store.keep(set(), 5, None)
    assert store.get(KEY) is None
    assert store.get(queue.Key("default", "newer")) == newer


async def test_a_sweep_takes_jobs_in_page_by_page() -> None:
    store = jobs.Jobs(queue.Queue())
    counts = []

    class PagedApi(memory_api.MemoryApi):
        async def page(self, *arguments: Any, **named: Any) -> lists.Listing:
            counts.append(len(store.keys()))
            return await super().page(*arguments, **named)

    api = PagedApi()
    api.page_size = 2
    for number in range(5):
        await api.create(resources.JOBS, "default", objects.job(f"job-{number}"))
    await sweeper.Sweeper(api, store, ()).sweep()
    assert counts == [0, 2, 4]
    assert len(store.keys()) == 5


async def test_who_owns_which_field_is_not_kept() -> None:
    store = jobs.Jobs(queue.Queue())
    body = _body(1)
    body["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    store.apply_event("ADDED", body)
    assert store.get(KEY) == _body(1)


async def test_an_object_that_cannot_be_read_hides_no_other_and_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a list, and in a watch, which would come to it again and again."""
    world, read_pod = FollowedPods(), records.pod

    def read(item: Mapping[str, Any]) -> observation.Pod | None:
        if item["metadata"].get("annotations"):
            raise ZeroDivisionError("a bug")
        return read_pod(item)

    monkeypatch.setattr(world.pods, "_slim", read)
    first = await world.add("first")
    broken = {"metadata": {**first["metadata"], "name": "never", "annotations": {"a": "b"}}}
    await world.api.create(resources.PODS, "default", {**first, **broken})
    async with asyncio.timeout(30), world.running():
        assert world.names() == ["first"]
        await world.api.patch(
            resources.PODS.path("default", "first"), {"metadata": {"annotations": {"a": "b"}}}
        )
        await world.add("second")
        await waiting.idle()
        assert world.names() == ["first", "second"]
        world.api.remove(resources.PODS.path("default", "first"))
        await waiting.idle()
        assert world.names() == ["second"]
    assert "pods default/never cannot be read" in caplog.text


async def test_a_label_that_comes_and_goes_leaves_one_reader_and_pods_of_no_job_none() -> None:
    """Each reader asks every few seconds, forever."""
    world = FollowedPods()
    world.pods.keeps_hidden = True
    path = resources.PODS.path("default", "a")
    await world.add("a")
    stranger = objects.pod("stranger")
    del stranger["metadata"]["ownerReferences"]
    async with world.running():
        before = len(asyncio.all_tasks())
        for item in (*world.api.items(resources.PODS) * 20, stranger):
            world.api._record(resources.PODS, "DELETED", item, "loses its label")
            await waiting.idle()
            assert world.names() == ["a"]
            if item is not stranger:
                world.api.touch(path)
                await waiting.idle()
        world.api._record(resources.PODS, "DELETED", world.api.items(resources.PODS)[0], "again")
        await waiting.idle()
        assert len(asyncio.all_tasks()) == before + 1
