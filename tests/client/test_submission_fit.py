"""Before a job exists, the client warns of a model that does not fit the GPUs that it would get."""

import asyncio
import pathlib
import types
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from click import testing as click_testing

import tfparallel
from tfparallel import submission
from tfparallel.backends.cluster import access, cluster_backend, creation
from tfparallel.cli import app
from tfparallel.planning import planner_process
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources
from tfparallel_trainer.contract import plan

PRODUCT, POOL = "nvidia.com/gpu.product", "example.com/pool"
T4 = f"nodeSelector: {{{PRODUCT}: Tesla-T4}}"
JOB = f"""
apiVersion: tfparallel.dev/v1alpha1
kind: TFParallelJob
metadata: {{name: large}}
spec:
  strategy: ModelSplit
  mesh: {{data: 2}}
  trainer: {{epochs: 1, globalBatchSize: 32}}
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          {T4}
          containers: [{{name: tensorflow, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""

MODULE = """
import keras
import numpy as np

def build_model():
    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(20_000) for _ in range(3))])

def compile_model(model):
    model.compile(keras.optimizers.Adam(), "mse")

def training_data():
    return np.zeros((16, 8)), np.zeros((16, 1))
"""
"""Weights of 3.2 GB; with gradients, slots and the update's memory five times as much."""

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "gone",
    "contexts": [{"name": "gone", "context": {"cluster": "gone", "user": "ann"}}],
    "clusters": [{"name": "gone", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "ann", "user": {}}],
}
"""Of a cluster that does not answer."""


class ListedNodes:
    """An API server that lists nodes with GPUs; None: it refuses to."""

    def __init__(self, labels: Sequence[Mapping[str, str]] | None = ()) -> None:
        self.labels = labels

    async def list(self, resource: resources.Resource, namespace: None) -> Any:
        assert (resource, namespace) == (resources.NODES, None)
        if self.labels is None:
            raise api_errors.Refused("nodes is forbidden", status=403)
        without_gpu = {"metadata": {"labels": {PRODUCT: "NVIDIA-B200"}}, "status": {}}
        status = {"allocatable": {"cpu": "8", "nvidia.com/gpu": "4"}}
        with_gpu = [{"metadata": {"labels": labels}, "status": status} for labels in self.labels]
        return types.SimpleNamespace(items=[without_gpu, *with_gpu])


def find_misfit(
    job: pathlib.Path,
    changes: Sequence[str] = (),
    labels: Sequence[Mapping[str, str]] | None = (),
) -> str | None:
    bundle = submission.read(job, changes)
    api: Any = ListedNodes(labels)
    return asyncio.run(creation.find_misfit(api, bundle))


@pytest.fixture
def job(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "model.py").write_text(MODULE)
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[plan.Question]:
    """What the planner is asked, which answers that the model does not fit."""
    asked: list[plan.Question] = []

    def ask(question: plan.Question, files: Mapping[str, Any], output: object) -> None:
        assert "model.py" in files
        asked.append(question)
        raise planner_process.ImpossiblePlanError("The model does not fit.")

    monkeypatch.setattr(planner_process, "ask", ask)
    return asked


@pytest.mark.usefixtures("processes")
def test_submit_says_what_would_make_a_model_fit_its_gpus(job: pathlib.Path) -> None:
    """No cluster answers, so nothing is created; the warning comes before that."""
    kubeconfig = job.with_name("kubeconfig")
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    command = ["submit", str(job), "--kubeconfig", str(kubeconfig)]
    result = click_testing.CliRunner().invoke(app.tfparallel, command)
    assert result.exit_code != 0
    warning, _, failure = result.stderr.partition(" The job is created all the same.\n")
    assert warning.startswith("warning: The model does not fit 2 devices of 13.5 GiB")
    assert "The model fits with mesh.shardOptimizer, " in warning
    assert "127.0.0.1:1" in failure
    assert find_misfit(job, ("spec.mesh.shardOptimizer=true",)) is None


@pytest.mark.usefixtures("processes")
def test_a_module_that_does_not_run_here_is_no_misfit(
    job: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.with_name("model.py").write_text(f"import only_in_the_image\n{MODULE}")
    assert find_misfit(job) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        (T4, (), "T4"),
        (T4, None, "T4"),
        (T4, [{PRODUCT: "NVIDIA-L4"}], "T4"),
        ("nodeSelector: {}", [{PRODUCT: "NVIDIA-L4"}], "L4"),
        ("nodeSelector: {}", [{PRODUCT: "NVIDIA-H200"}, {PRODUCT: "NVIDIA-L4"}], "H200"),
        (
            f"nodeSelector: {{{POOL}: a}}",
            [{POOL: "a", PRODUCT: "NVIDIA-L4"}, {POOL: "b", PRODUCT: "NVIDIA-H200"}],
            "L4",
        ),
    ],
)
def test_labels_of_templates_name_gpus_or_else_those_of_their_nodes(
    job: pathlib.Path,
    questions: list[plan.Question],
    selector: str,
    labels: Sequence[Mapping[str, str]] | None,
    expected: str,
) -> None:
    job.write_text(JOB.replace(T4, selector))
    # A suspended job asks for its pods later.
    assert find_misfit(job, ("spec.runPolicy.suspend=true",), labels) == (
        "The model does not fit. The job is created all the same."
    )
    [question] = questions
    assert (question.device_type, question.processes, question.devices) == (expected, 2, 1)


@pytest.mark.parametrize("labels", [None, (), [{PRODUCT: "NVIDIA-L4"}, {PRODUCT: "NVIDIA-B9"}]])
def test_nodes_that_nobody_may_see_or_that_have_unknown_gpus_tell_nothing(
    job: pathlib.Path,
    questions: list[plan.Question],
    labels: Sequence[Mapping[str, str]] | None,
) -> None:
    job.write_text(JOB.replace(T4, "nodeSelector: {}"))
    assert find_misfit(job, labels=labels) is None
    assert questions == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  strategy: ModelSplit\n  mesh: {data: 2}\n", "  strategy: MultiWorkerMirrored\n"),
        ("trainer: {", "trainer: {module: elsewhere.py, "),
    ],
)
def test_what_cannot_be_known_is_not_planned(
    job: pathlib.Path, questions: list[plan.Question], old: str, new: str
) -> None:
    """Neither a model that each replica has all of, nor code in an image or elsewhere."""
    job.write_text(JOB.replace(old, new))
    assert find_misfit(job) is None
    assert questions == []


async def test_the_python_client_warns_and_creates_the_job(
    job: pathlib.Path, questions: list[plan.Question], monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[submission.Submission] = []

    async def submit(_: object, __: object, bundle: submission.Submission) -> None:
        created.append(bundle)

    monkeypatch.setattr(creation, "submit", submit)
    kubeconfig = job.with_name("kubeconfig")
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    context = access.find(access.ConnectionOptions(str(kubeconfig), None, None))
    async with cluster_backend.ClusterBackend(context) as cluster:
        with pytest.warns(tfparallel.MisfitWarning, match=r"^The model does not fit\. The job"):
            await cluster.create_job(yaml.safe_load(JOB), job.parent)
    assert len(questions) == len(created) == 1
