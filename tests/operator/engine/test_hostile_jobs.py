"""Jobs that are larger, deeper or stranger than the operator reads, on a real API server.

They are just beyond the operator's own limits, and an API server stores them.
"""

import json
import pathlib
from typing import Any

import pytest

from testing import waiting
from testing.operator import namespaces, objects, operator_process
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import gate, names
from tfparallel_operator.api_server import resources

PODS = ("digits-chief-0", "digits-worker-0")
INVALID = names.Reason.INVALID_SPEC
LEVELS = 1_100
"""More than kopf's and orjson's readers go down."""
TOO_DEEP = f"it nests deeper than {gate.MAX_DEPTH} levels"

HOSTILE: dict[str, tuple[str, str]] = {
    "deep-1100": ("[" * LEVELS + "]" * LEVELS, TOO_DEEP),
    "deep-300": ("[" * 300 + "]" * 300, TOO_DEEP),
    "large": ("[" + "{}," * 300_000 + "{}]", "bytes as JSON, and the operator reads at most"),
    "many": ("[" + "1," * gate.MAX_VALUES + "1]", f"more than {gate.MAX_VALUES} fields and items"),
    "number": ("1" + "0" * 30, "1e+30 is beyond"),
    "control": ('{"env":[{"name":"A\\u001b[2J"}]}', r"a name has the control character \x1b"),
    "text": ('"a\\u0000b"', r"the text has the control character \x00"),
    "name": (f'{{"{"n" * 1025}":1}}', "a name has 1025 letters, and may have 1024"),
}
"""A field of each job's template, and the words of the job's condition."""


def _text(name: str, value: str) -> bytes:
    """Return a job whose template has one more field."""
    job = objects.job(name, workers=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["strange"] = "STRANGE"
    return json.dumps(job).replace('"STRANGE"', value).encode()


def _with_long_quantity() -> dict[str, Any]:
    """Return a job whose quantity took the first parser minutes, next to the GPU that needs it."""
    job = objects.job("quantity", workers=0)
    [container] = job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"memory": "9" * 60_000 + "x", "nvidia.com/gpu": "1"}}
    return job


async def _send(namespace: Namespace, method: str, text: bytes, name: str = "") -> None:
    """Store a job that this project's own client would not send."""
    kind = "application/merge-patch+json" if name else "application/json"
    url = namespace.api.access.server + resources.JOBS.path(namespace.name, name)
    async with (
        namespace.api.access.session() as session,
        session.request(method, url, data=text, headers={"Content-Type": kind}) as answer,
    ):
        assert answer.status < 300, await answer.text()


def _variables(*watched: Namespace) -> dict[str, str]:
    return {
        "KUBECONFIG": str(watched[0].cluster.kubeconfig),
        "TFPARALLEL_WATCH_NAMESPACES": ",".join(namespace.name for namespace in watched),
        "POD_NAMESPACE": watched[0].name,
    }


async def _says(namespace: Namespace, name: str, sentence: str) -> None:
    def is_refused(status: dict[str, Any]) -> bool:
        messages = [c["message"] for c in status.get("conditions", ()) if c["reason"] == INVALID]
        return any(sentence in message for message in messages)

    await namespace.until_status(f"job {name} says {sentence!r}", is_refused, name)


async def test_jobs_beyond_the_limits_end_no_operator_and_hold_up_no_other_job(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    async with namespaces.open_in(namespace.cluster) as other:
        variables = _variables(namespace, other)
        async with operator_process.running(variables, tmp_path / "first") as operator:
            await operator.until_ready()
            for name, (value, _) in HOSTILE.items():
                await _send(namespace, "POST", _text(name, value))
            await namespace.create_job(_with_long_quantity())
            await other.create_job(objects.job(workers=1))
            await other.until_pods(*PODS)
            for name, (_, sentence) in HOSTILE.items():
                await _says(namespace, name, sentence)
            assert (await operator.probe("/readyz"))[0] == 200
            assert operator.process.returncode is None, operator.log
            assert "Traceback" not in operator.log
        async with operator_process.running(variables, tmp_path / "second") as operator:
            await operator.until_ready()  # It lists them all.
            await other.create_job(objects.job("next", workers=0))
            await other.until_pods(*PODS, "next-chief-0")
            assert "Traceback" not in operator.log


async def _events(namespace: Namespace, reason: str) -> list[dict[str, Any]]:
    events = (await namespace.api.list(resources.EVENTS, namespace.name)).items
    return [event for event in events if event["reason"] == reason]


async def test_statuses_beyond_the_limits_keep_to_their_job_and_their_pod(
    namespace: Namespace,
) -> None:
    """Whoever may write statuses may store some hundred kilobytes."""
    text = "x" * 30_000
    time = "2026-11-27T10:00:00Z"
    large = [
        {"type": f"{text[:200]}{number}", "status": "True", "reason": "x", "message": text}
        | {"lastTransitionTime": time}
        for number in range(10)
    ]
    path = resources.JOBS.path(namespace.name, "digits", "status")
    async with namespace.operator():
        for name in ("digits", "other"):
            await namespace.create_job(objects.job(name, workers=0))
        await namespace.until_pods("digits-chief-0", "other-chief-0")
        many = [{"type": f"x{n}", "status": "True", "message": text[:5_000]} for n in range(40)]
        await namespace.write_status("other-chief-0", {"phase": "Pending", "conditions": many})
        await namespace.until_reason("Chief", "the pod's status: it has 16", "other")
        before = (await namespace.status())["conditions"]
        await namespace.api.patch(path, {"status": {"conditions": [*before, *large]}})
        [event] = await waiting.until_async(
            lambda: _events(namespace, names.Reason.STATUS_UNREADABLE), "the job says so", when=bool
        )
        assert "leaves the job alone, because it cannot read its status: it has 3" in event["note"]
        await namespace.write_status("other-chief-0", {"conditions": None})
        await namespace.run_all()
        await namespace.end("other-chief-0", 0)
        await namespace.until_state("Succeeded", "other")
        assert set(await namespace.pods()) >= {"digits-chief-0"}
        await namespace.api.patch(path, {"status": {"conditions": before}})
        await namespace.until_state("Running")


@pytest.mark.parametrize("name", ["deep-1100", "large"])
async def test_a_job_that_runs_goes_on_after_an_edit_beyond_the_limits(
    namespace: Namespace, name: str, tmp_path: pathlib.Path
) -> None:
    value, sentence = HOSTILE[name]
    async with operator_process.running(_variables(namespace), tmp_path / "log") as operator:
        await operator.until_ready()
        await namespace.create_job(objects.job(workers=1))
        await namespace.run_pods(*PODS)
        role = f'{{"template":{{"strange":{value}}}}}'
        change = f'{{"spec":{{"tfReplicaSpecs":{{"Worker":{role}}}}}}}'
        await _send(namespace, "PATCH", change.encode(), "digits")
        await _says(namespace, "digits", sentence)
        message = (await namespace.condition("SpecInvalid"))["message"]
        assert "the job continues with generation 1 of its spec" in message
        await namespace.end("digits-worker-0", 0)
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")
        assert "Traceback" not in operator.log
