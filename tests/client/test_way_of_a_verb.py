"""The way of a verb is the one that docs/explanation/architecture.md lists."""

import json
import pathlib
import shutil
import threading

from click import testing as click_testing

import tfparallel
import tfparallel_operator
from testing import paths, waiting, ways
from testing.cluster import handle
from tfparallel.cli import app

_NAMESPACE = "way-of-submit"
_SUCCEEDED = {
    "state": "Succeeded",
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "JobSucceeded",
            "message": "",
            "lastTransitionTime": "2026-11-28T10:00:00Z",
        }
    ],
}


def test_submit_goes_the_way_of_the_page(cluster: handle.Cluster, tmp_path: pathlib.Path) -> None:
    for name in ("job.yaml", "model.py"):
        shutil.copy(paths.EXAMPLES / "digits" / name, tmp_path)
    cluster.run_kubectl("create", "namespace", _NAMESPACE)

    def succeed() -> None:
        """Play the operator: the job succeeds once it exists."""
        job = ("--namespace", _NAMESPACE, "tfparalleljob/digits")
        get = ("get", *job, "--ignore-not-found", "--output=name")
        waiting.until(lambda: cluster.run_kubectl(*get), "a job")
        patch = ("--subresource=status", "--type=merge")
        status = json.dumps({"status": _SUCCEEDED})
        cluster.run_kubectl("patch", *job, *patch, f"--patch={status}")

    packages = (tfparallel, tfparallel_operator)
    recorder = ways.Recorder(*(pathlib.Path(str(package.__file__)).parent for package in packages))
    operator = threading.Thread(target=succeed)
    operator.start()
    arguments = ["submit", str(tmp_path / "job.yaml"), "--namespace", _NAMESPACE]
    arguments += ["--kubeconfig", str(cluster.kubeconfig)]
    with recorder.recording():
        result = click_testing.CliRunner().invoke(app.tfparallel, arguments)
    operator.join()
    assert result.exit_code == 0, result.output
    recorder.check(ways.read("## The way of a verb"))
