"""Other jobs while one job, the progress endpoint or all of a namespace is flooded."""

import asyncio
import itertools
import os
import pathlib
import sys
import tempfile
import time

from benchmarks import results
from benchmarks.operators import arena, attacked, attacks, contestants, steady
from benchmarks.scripts import flood_requests, hostile_tenant
from testing.cluster import settings
from testing.operator import earlier, namespaces
from tfparallel.backends.local import ports
from tfparallel_operator.engine.run import lease

DELAY_TARGET, MEMORY_TARGET = 1.0, 150.0
HOSTILE_MEMORY_TARGET = 200.0
BLOCK_RUNS = 2
PROBE_TARGET = 5.0
"""Seconds after which the chart's probes count as failed."""

BEFORE_GATE = "2e0e8d13c9988b3c2759eda101f842537980a6db"
"""The last commit whose operator read whatever a tenant stored."""

WHEN = "while one tenant sends the worst of everything"


def measure(size: results.Size) -> list[results.Result]:
    """Run once, on a cluster of its own."""
    with arena.cluster("benchmark-flood", settings.Light()) as cluster:
        contestants.OURS.install(cluster)
        with tempfile.TemporaryDirectory() as name:
            site = contestants.Place(cluster, "benchmark", pathlib.Path(name))
            return asyncio.run(rows(site, size))


async def rows(site: contestants.Place, size: results.Size) -> list[results.Result]:
    """Measure on a cluster without nodes: at first many kinds of attacks, then many events."""
    [port] = ports.allocate(1)
    target = flood_requests.FloodTarget(
        str(site.cluster.kubeconfig),
        site.namespace,
        attacked.FLOODED,
        size.large,
        port,
        float(size.seconds),
    )
    variables = {"TFPARALLEL_PROGRESS_PORT": str(port)}
    observed = await attacked.attack_operator(site, size, variables, attacks.flooding(target))
    async with attacks.repeater(site, attacked.FLOODED) as (kubeconfig, repeating):
        repeated = await attacked.attack_operator(site, size, {"KUBECONFIG": kubeconfig}, repeating)
    return [
        *_results(observed),
        _of_events(repeated),
        *await _of_a_tenant(site, size),
        await _longest_block(site, size),
    ]


async def _of_a_tenant(site: contestants.Place, size: results.Size) -> list[results.Result]:
    """Measure while a tenant of another namespace stores and sends the worst of everything."""
    target, variables = _tenant(site, size, "tenant")
    observed = await attacked.attack_operator(site, size, variables, attacks.storing(target))
    at_most = results.Bound.AT_MOST
    return [
        results.Result(
            f"99 % of other jobs' statuses after their event, {WHEN}",
            DELAY_TARGET,
            at_most,
            observed.flooded.delay,
            " s",
            f"in each second {observed.rate('objects')} hostile objects,"
            f" {observed.rate('statuses')} statuses of pods, {observed.rate('reports')} reports"
            f" with a valid token; {hostile_tenant.SILENT} connections that say nothing;"
            f" {hostile_tenant.LARGE_JOBS} jobs and {hostile_tenant.LARGE_MAPS} ConfigMaps of"
            f" {hostile_tenant.LARGE / 1e6:.1f} MB; the API server took"
            f" {observed.flooded.write:.2f} s for 99 % of the events themselves, in peace"
            f" {observed.peace.write:.2f} s, and {observed.flooded.hearing:.2f} s until a plain"
            f" watch heard of 99 % of them; the operator used {observed.share} of a core",
        ),
        results.Result(
            f"resident memory at most, {WHEN}",
            HOSTILE_MEMORY_TARGET,
            at_most,
            observed.resident[1],
            " MB",
            f"{observed.resident[0]:.0f} MB before it; {await _try_before_gate(site, size)}",
        ),
        results.Result(
            f"slowest answer of a probe, {WHEN}",
            PROBE_TARGET,
            at_most,
            observed.probe,
            " s",
            f"longest time between two renewals of the Lease {observed.flooded.longest_gap:.1f} s",
        ),
    ]


async def _longest_block(site: contestants.Place, size: results.Size) -> results.Result:
    """Measure the event loop while a tenant stores and sends the worst of everything."""
    report = site.folder / "report.json"
    numbers = itertools.count()

    async def run() -> None:
        target, variables = _tenant(site, size, f"watched-{next(numbers)}")
        await attacked.attack_operator(
            site, size, variables, attacks.storing(target), contestants.watched(report)
        )

    return await steady.longest_block(WHEN.removeprefix("while "), run, report, BLOCK_RUNS)


def _tenant(
    site: contestants.Place, size: results.Size, name: str
) -> tuple[hostile_tenant.Target, dict[str, str]]:
    """Return the attack of a tenant, and what an operator that is attacked is started with."""
    [port] = ports.allocate(1)
    namespace = f"{site.namespace}-{name}"
    kubeconfig, seconds = str(site.cluster.kubeconfig), float(size.seconds)
    return hostile_tenant.Target(kubeconfig, namespace, port, seconds), {
        "TFPARALLEL_PROGRESS_PORT": str(port),
        "TFPARALLEL_WATCH_NAMESPACES": f"{site.namespace},{namespace}",
    }


async def _try_before_gate(site: contestants.Place, size: results.Size) -> str:
    """Attack the operator of BEFORE_GATE in the same way; say what became of it.

    The cluster has that commit's definition of the resource meanwhile: an older operator refuses
    later fields, which the API server fills in.
    """
    operator = earlier.unpack_commit(site.folder / "before", BEFORE_GATE)
    if operator is None:
        return "the operator before the gate is not in the history of this checkout"
    target, variables = _tenant(site, size, "before")
    folders = os.pathsep.join([operator.variables["PYTHONPATH"], *filter(None, sys.path)])
    before = contestants.with_variables(contestants.OURS, **variables, PYTHONPATH=folders)
    namespaces.install(site.cluster, operator.definition())
    try:
        return await _attack_until_silent(before, site, target, size)
    finally:
        contestants.OURS.install(site.cluster)


async def _attack_until_silent(
    operator: contestants.Contestant,
    site: contestants.Place,
    target: hostile_tenant.Target,
    size: results.Size,
) -> str:
    async with contestants.running(operator, site) as running, attacks.storing(target):
        begun = time.monotonic()
        while time.monotonic() - begun < size.seconds:
            try:
                await asyncio.to_thread(running.read, "/healthz")
            except OSError:
                seconds = time.monotonic() - begun
                return f"the operator before the gate no longer answered after {seconds:.0f} s"
            await asyncio.sleep(0.5)
    return "the operator before the gate answered until the end"


def _results(observed: attacked.Attacked) -> list[results.Result]:
    flooded, peace = observed.flooded, observed.peace
    at_most = results.Bound.AT_MOST
    return [
        results.Result(
            "99 % of other jobs' statuses after their event, in a flood",
            DELAY_TARGET,
            at_most,
            flooded.delay,
            " s",
            f"{len(flooded.delays)} events; in peace {peace.delay:.2f} s; in each second"
            f" {observed.rate('events')} events on one job, {observed.rate('tokens')} wrong tokens,"
            f" {observed.rate('uploads')} reports that are too large; {flood_requests.SLOW}"
            f" connections that send next to nothing; the operator used {observed.share} of a core",
        ),
        results.Result(
            "longest time between two renewals of the Lease, in a flood",
            attacked.LEASE_SECONDS * lease.RENEWED_WITHIN,
            at_most,
            flooded.longest_gap,
            " s",
            f"{attacked.LEASE_SECONDS / lease.TRIES:.0f} s are planned; in peace"
            f" {peace.longest_gap:.2f} s",
        ),
        results.Result(
            "resident memory at most, in a flood",
            MEMORY_TARGET,
            at_most,
            observed.resident[1],
            " MB",
            f"{observed.resident[0]:.0f} MB before it",
        ),
    ]


def _of_events(observed: attacked.Attacked) -> results.Result:
    return results.Result(
        f"99 % of other jobs' statuses, with {attacks.REPEATED:,} events a second on one job",
        DELAY_TARGET,
        results.Bound.AT_MOST,
        observed.flooded.delay,
        " s",
        f"{len(observed.flooded.delays)} events; in peace {observed.peace.delay:.2f} s;"
        f" {observed.rate('events')} events in each second; the operator used {observed.share} of"
        f" a core; longest time between two renewals {observed.flooded.longest_gap:.1f} s; memory"
        f" at most {observed.resident[1]:.0f} MB",
    )
