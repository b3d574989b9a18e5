"""The way of a job is the one that docs/explanation/architecture.md lists."""

import pathlib
from types import SimpleNamespace
from typing import Any

import tfparallel_operator
from testing import ways
from testing.operator import objects
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api_server import resources
from tfparallel_operator.engine import handlers

_take_job: Any = handlers.take_job
"""kopf's type of a handler asks for all that kopf passes."""


async def test_a_new_job_goes_the_way_of_the_page() -> None:
    cluster = MemoryCluster()
    recorder = ways.Recorder(pathlib.Path(str(tfparallel_operator.__file__)).parent)
    async with cluster.running():
        body = await cluster.api.create(resources.JOBS, "default", objects.job())
        settings = SimpleNamespace(watch_namespaces=())
        engine = SimpleNamespace(settings=settings, jobs=cluster.engine.jobs)
        event = {"type": "ADDED", "object": body}
        with recorder.recording():
            await _take_job(event=event, namespace="default", memo=SimpleNamespace(engine=engine))
            await cluster.engine.run_until_quiet()
    assert len(cluster.pods) == 3
    assert cluster.status["state"] == "Pending"
    recorder.check(ways.read("## The way of a job"))
