"""Large objects that bear the operator's own label, on a real API server."""

import pathlib

from testing.operator import operator_process
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources

PODS = 30
VARIABLES = 20_000
"""Of a pod: they take 0.9 MB, and some 30 times as much as Python's objects."""
MOST_KILOBYTES = 250_000
"""The operator takes 120,000 without any; all of these pods at once took it to 378,000."""


async def test_large_pods_of_a_tenant_take_no_memory_of_the_operator(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """No node takes them: they cost their owner nothing."""
    variables = [{"name": "A", "value": "x" * 10}] * VARIABLES
    container = {"name": "c", "image": "i", "env": variables}
    spec = {"nodeSelector": {"there": "is-none"}, "containers": [container]}
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    for number in range(PODS):
        pod = {"metadata": {"name": f"large-{number}", "labels": labels}, "spec": spec}
        await namespace.api.create(resources.PODS, namespace.name, pod, metadata_only=True)
    async with operator_process.running(namespace.variables, tmp_path / "log") as operator:
        await operator.until_ready()
        text = pathlib.Path(f"/proc/{operator.process.pid}/status").read_text()
    [most] = [line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")]
    assert int(most) < MOST_KILOBYTES
