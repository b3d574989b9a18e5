"""Jobs whose pods start together, and their PodGroups."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from testing.operator import builders
from tfparallel_operator.api import types
from tfparallel_operator.core import installation, observation, replicas
from tfparallel_operator.core.queue import gang

COSCHEDULING = types.GangScheduler.COSCHEDULING
WORKER = replicas.Replica(types.Role.WORKER, 0)


def with_gangs(scheduler: types.GangScheduler | None = None) -> installation.InstallationSettings:
    """Return the settings of an installation where somebody schedules."""
    return dataclasses.replace(builders.SETTINGS, gangs=installation.Gangs(scheduler))


def a_gang(
    scheduler: types.GangScheduler = COSCHEDULING,
    policy: dict[str, Any] | None = None,
    **roles: Any,
) -> builders.World:
    """Return a job of a gang, with all that it needs."""
    spec = {"scheduling": {"gang": scheduler.value}}
    run_policy = None if policy is None else {"schedulingPolicy": policy}
    job = builders.a_job(spec=spec, run_policy=run_policy, **roles)
    world = builders.World(job, settings=with_gangs())
    world.run_until_quiet()
    return world


def only_group(world: builders.World) -> observation.Group:
    """Return the one group that there is."""
    [group] = world.groups.values()
    return group


def a_pod(world: builders.World) -> Mapping[str, Any]:
    """Return the manifest of worker 0."""
    pod = builders.a_pod(world.job, WORKER, world.settings)
    gang.join(pod, world.job, world.settings.gangs)
    return pod
