"""The command on a real cluster: a job from a folder to its end, and what each verb shows of it."""

import os
import pathlib

import pytest
import yaml

from testing import invocation
from testing.e2e import jobs, kubectl_namespaces, modules, volumes

pytestmark = [pytest.mark.timeout(1800)]

MODEL = modules.dense(
    "from layers import blocks",
    units="blocks.SIZE",
    before_data=('print("a line of the module")',),
)
WIDTH = 80


class Command:
    """`tfparallel` in a folder, as in a log of continuous integration of 80 columns."""

    def __init__(
        self, folder: pathlib.Path, namespace: kubectl_namespaces.KubectlNamespace
    ) -> None:
        self._folder = folder
        self._options = invocation.where(namespace)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit status and what is shown."""
        variables = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
        done = invocation.run(*arguments, *self._options, folder=self._folder, env=variables)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def command(tmp_path: pathlib.Path, namespace: kubectl_namespaces.KubectlNamespace) -> Command:
    trainer = {
        "epochs": 2,
        "globalBatchSize": 8,
        "checkpoint": {"claim": "results"},
    }
    job = {
        "apiVersion": "tfparallel.dev/v1alpha1",
        "kind": "TFParallelJob",
        "metadata": {"name": "lines"},
        "spec": {"trainer": trainer, "tfReplicaSpecs": {"Chief": {}, "Worker": {}}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers/blocks.py").write_text("SIZE = 1\n")
    return Command(tmp_path, namespace)


def test_a_folder_becomes_a_job_that_is_followed_to_its_end(
    command: Command, namespace: kubectl_namespaces.KubectlNamespace
) -> None:
    volumes.provide(namespace, "results")
    code, out, err = command("submit", "job.yaml", "--claim", "1Gi")
    assert code == 0, namespace.describe("lines")
    assert {f"[{name}] a line of the module" for name in ("chief-0", "worker-0")} <= {
        *out.splitlines()
    }
    assert "tfparalleljob/lines created with" in err
    assert "ReplicasRunning" in err
    assert "[chief-0] step 16/16  epoch " in out
    assert "(100%)" not in err, "the lines of the trainer have said it"
    assert "Succeeded: lines" in out

    code, out, _ = command("status")
    assert code == 0
    assert out.splitlines()[1].split()[:2] == ["lines", "Succeeded"]
    code, out, _ = command("status", "lines")
    assert "progress" in out
    code, out, _ = command("logs", "lines", "--tail", "5")
    assert 0 < len(out.splitlines()) <= 5
    code, _, err = command("logs", "lines", "worker-7")
    assert (code, "has no replica 'worker-7'" in err) == (2, True)
    code, out, _ = command("events", "lines")
    assert "JobStarted" in out
    code, out, _ = command("why", "lines")
    assert (code, "succeeded" in out.lower()) == (0, True), out
    assert command("delete", "lines")[0] == 0
    namespace.wait_gone("lines")
    assert "lines-source" not in namespace.kubectl("get", "configmaps", "-o", "name")


def test_a_script_gets_the_files_of_its_folder(
    command: Command, tmp_path: pathlib.Path, namespace: kubectl_namespaces.KubectlNamespace
) -> None:
    (tmp_path / "train.py").write_text("from layers import blocks\nprint('size', blocks.SIZE)\n")
    worker = jobs.script("", replicas=2)
    pod = worker["template"]["spec"]
    [container] = pod["containers"]
    container |= {
        "command": ["python", "train.py"],
        "workingDir": "/workspace/source",
        "volumeMounts": [{"name": "source", "mountPath": "/workspace/source"}],
    }
    pod["volumes"] = [{"name": "source", "configMap": {"name": "lines"}}]
    job = jobs.job("lines", tfReplicaSpecs={"Worker": worker})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, out, err = command("submit", "job.yaml")
    assert code == 0, namespace.describe("lines")
    assert "size 1" in out, err
    assert "get its model" not in out
    code, out, _ = command("get", "jobs", "-o", "wide")
    assert out.splitlines()[1].split()[:2] == ["lines", "Succeeded"]


def test_a_module_that_fails_at_import_is_reported_once(command: Command) -> None:
    (command._folder / "layers/blocks.py").write_text("raise ValueError('no size')\n")
    code, _, err = command("submit", "job.yaml", "--set", "spec.trainer.checkpoint=null")
    assert code == 1
    assert err.count("no size") == 1, err
