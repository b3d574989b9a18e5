"""Jobs of people who train with a script of their own: TF_CONFIG is all that they need."""

import json
from pathlib import Path

import pytest

import tfparallel
from testing import invocation, pictures, waiting
from testing.e2e import jobs, kubectl_namespaces, operator, volumes

pytestmark = [pytest.mark.timeout(1800)]

MANY = 64
"""Workers that fit no node: with the chief they are enough to share a cluster."""

PRINT = "import os; print(os.environ['TF_CONFIG'])"
PRINT_AND_RESOLVE = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
for address in sum(config["cluster"].values(), []):
    host, _, port = address.partition(":")
    for attempt in range(60):
        try:
            socket.getaddrinfo(host, int(port))
            break
        except OSError:
            time.sleep(1)
    else:
        raise SystemExit(f"{host} is not found")
print(os.environ["TF_CONFIG"], flush=True)
"""
PRINT_RESOLVE_AND_STAY = f"{PRINT_AND_RESOLVE}time.sleep(3600)"
SERVE = "import os, time; print(os.environ['TF_CONFIG'], flush=True); time.sleep(3600)"


def _config(
    namespace: kubectl_namespaces.KubectlNamespace, pod: str
) -> dict[str, dict[str, object]]:
    """What a replica printed, which may come after the end of the job."""

    def log() -> str:
        return namespace.kubectl("logs", pod, "--ignore-errors")

    shown = waiting.until(log, f"what {pod} prints", when=lambda text: text.startswith("{"))
    config: dict[str, dict[str, object]] = json.loads(shown)
    return config


@pytest.fixture(scope="module")
def jobs_namespace(
    module_namespace: kubectl_namespaces.KubectlNamespace,
) -> kubectl_namespaces.KubectlNamespace:
    """Where small jobs run at the same time: roles, servers and many."""
    many = {
        "Chief": jobs.script(PRINT),
        "Worker": jobs.script(PRINT, replicas=MANY, devices=64),
    }
    servers = {
        "Chief": jobs.script(PRINT),
        "Worker": jobs.script(PRINT),
        "PS": jobs.script(SERVE, replicas=2),
    }
    roles = {
        "Chief": jobs.script(PRINT_AND_RESOLVE),
        "Worker": jobs.script(PRINT_RESOLVE_AND_STAY, replicas=2),
        "PS": jobs.script(SERVE),
        "Evaluator": jobs.script(PRINT),
    }
    module_namespace.apply(
        jobs.job("roles", runPolicy={"cleanPodPolicy": "None"}, tfReplicaSpecs=roles),
        jobs.job("servers", tfReplicaSpecs=servers),
        jobs.job("many", tfReplicaSpecs=many),
    )
    return module_namespace


def test_every_role_knows_its_task(jobs_namespace: kubectl_namespaces.KubectlNamespace) -> None:
    job = jobs_namespace.wait_ended("roles")
    assert job["status"]["state"] == "Succeeded", jobs_namespace.describe("roles")
    assert job["status"]["strategy"] == "ParameterServer"
    cluster = {
        "chief": ["roles-chief-0.roles:2222"],
        "worker": ["roles-worker-0.roles:2222", "roles-worker-1.roles:2222"],
        "ps": ["roles-ps-0.roles:2222"],
    }
    for role, index in (("chief", 0), ("worker", 1), ("ps", 0)):
        config = _config(jobs_namespace, f"roles-{role}-{index}")
        assert config == {"cluster": cluster, "task": {"type": role, "index": index}}


def test_many_replicas_share_a_cluster_that_the_kubelet_fills_in(
    jobs_namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    job = jobs_namespace.wait_ended("many")
    assert job["status"]["state"] == "Succeeded", jobs_namespace.describe("many")
    [container] = jobs_namespace.pods("many")["many-chief-0"]["spec"]["containers"]
    assert "many-worker-0" not in json.dumps(container)
    config = _config(jobs_namespace, "many-chief-0")
    assert config["task"] == {"type": "chief", "index": 0}
    assert config["cluster"] == {
        "chief": ["many-chief-0.many:2222"],
        "worker": [f"many-worker-{index}.many:2222" for index in range(MANY)],
    }


def test_servers_are_stopped_when_the_chief_has_succeeded(
    jobs_namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    job = jobs_namespace.wait_ended("servers")
    assert job["status"]["state"] == "Succeeded", jobs_namespace.describe("servers")
    jobs_namespace.wait("servers", lambda _: not _of_role(jobs_namespace, "servers", "ps"))
    assert _of_role(jobs_namespace, "servers", "chief") == ["servers-chief-0"]


def _of_role(namespace: kubectl_namespaces.KubectlNamespace, job: str, role: str) -> list[str]:
    pods = namespace.pods(job).items()
    return [n for n, p in pods if p["metadata"]["labels"]["tfparallel.dev/replica-role"] == role]


@pytest.fixture(scope="module")
def free(make_namespace: kubectl_namespaces.Make) -> kubectl_namespaces.KubectlNamespace:
    """A namespace for templates that ask for no security at all, as most that exist."""
    namespace = make_namespace("scripts")
    namespace.cluster.run_kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce-"
    )
    return namespace


@pytest.fixture(scope="module")
def fit(
    free: kubectl_namespaces.KubectlNamespace,
) -> volumes.Volume:
    """The example that calls fit; gives its volume."""
    volume = volumes.make(free, "fit")
    _start(free, "fit", operator.example("fit", "train.py"))
    return volume


def _start(namespace: kubectl_namespaces.KubectlNamespace, name: str, script: Path) -> None:
    """Apply an example with this script."""
    namespace.kubectl("create", "configmap", name, f"--from-file=train.py={script}")
    namespace.kubectl("apply", f"--filename={operator.example(name)}")


def _accuracy(namespace: kubectl_namespaces.KubectlNamespace, pod: str) -> float:
    return float(namespace.kubectl("logs", pod).rpartition("accuracy ")[2].split()[0])


def test_example_of_a_script_that_calls_fit_trains(
    free: kubectl_namespaces.KubectlNamespace, fit: volumes.Volume, tmp_path: Path
) -> None:
    status = free.wait_ended("fit")["status"]
    assert status["state"] == "Succeeded", free.describe("fit")
    assert _accuracy(free, "fit-chief-0") > 0.9
    files = fit.list("")
    assert "best.keras" in files
    assert any(name.startswith("checkpoints/step-") for name in files)
    # fit reports to the operator as the shipped trainer does.
    assert float(status["progress"]["metrics"]["val_accuracy"]) > 0.9
    where = ("-n", free.name, "--kubeconfig", str(free.cluster.kubeconfig))
    to = ("--path", "/workspace/output", "--to", tmp_path)
    invocation.run("get", "model", "fit", *where, *to, check=True)
    assert (tmp_path / "best.keras").stat().st_size
    # Its report has the curves, which fit keeps next to the model.
    page = tmp_path / "report.html"
    invocation.run("report", "fit", "-o", page, *where, check=True)
    assert "val_accuracy" in pictures.words(page.read_text(encoding="utf-8"))
    assert any(
        "loss" in pictures.title(page_picture) for page_picture in pictures.find(page.read_text())
    )


def fit_line(slope, results):  # type: ignore[no-untyped-def]
    """Trains in pods, alone: it imports whatever it uses."""
    import keras
    import numpy

    import tfparallel_trainer

    tfparallel_trainer.start()
    x = numpy.linspace(-1.0, 1.0, 64).reshape(64, 1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    checkpoint = keras.callbacks.ModelCheckpoint(results / "line.keras")
    tfparallel_trainer.fit(model, x, slope * x, epochs=2, batch_size=16, callbacks=[checkpoint])


@pytest.mark.long
def test_a_function_trains_in_pods(
    free: kubectl_namespaces.KubectlNamespace, tmp_path: Path
) -> None:
    cluster = tfparallel.Cluster(kubeconfig=str(free.cluster.kubeconfig), namespace=free.name)
    volumes.provide(free, "fit-line-results")
    with tfparallel.TrainerClient(cluster) as client:
        job = client.train(func=fit_line, func_args={"slope": 2.0}, workers=2)
        ended = client.wait_for_job_status(job.name, timeout=kubectl_namespaces.JOB_SECONDS)
        assert ended.progress is not None
        assert ended.progress.metrics["loss"] > 0
        model = client.get_model(job.name, to=tmp_path)
        assert (model, model.stat().st_size > 0) == (tmp_path / "line.keras", True)
