"""Code in an archive, a package, a Secret and a claim of a template reach pods that train."""

import json
from pathlib import Path
from typing import Any

import pytest

from testing import sources
from testing.e2e import jobs, kubectl_namespaces, terminal, volumes
from testing.operator import objects
from tfparallel_operator.api import names

pytestmark = [pytest.mark.timeout(1800)]

MODEL = """
import os

import addon
import keras
import numpy


def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def compile_model(model):
    model.compile(optimizer="sgd", loss="mse")


def training_data(context):
    seen = (addon.VERSION, os.environ["TOKEN"], open("/key/token").read(), os.environ["S_token"])
    assert seen == ("1.0", "secret", "secret", "secret"), seen
    x = numpy.loadtxt(context.source_dir / "data/x.txt", dtype="float32")
    return x, x.sum(axis=1, keepdims=True)
"""
REQUIREMENTS = "--no-index\n--find-links wheels\n"
WHEEL, CONTENT = sources.wheel("addon", "1.0", "numpy")


def job(
    name: str, namespace: kubectl_namespaces.KubectlNamespace, *requirements: str
) -> kubectl_namespaces.Object:
    """Apply the ConfigMaps of a source, and return the job that trains it."""
    source, config_maps = sources.in_config_maps(
        name,
        {
            "model.py": MODEL,
            "data/x.txt": "1 2 3\n4 5 6\n" * 8,
            "requirements.txt": REQUIREMENTS + "\n".join(requirements),
            f"wheels/{WHEEL}": CONTENT,
        },
    )
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "store"},
        "stringData": {"token": "secret"},
    }
    namespace.apply(*config_maps, secret)
    key = {"secretKeyRef": {"name": "store", "key": "token"}}
    trainer: dict[str, Any] = {
        "epochs": 1,
        "globalBatchSize": 8,
        "source": {**source, "requirements": "requirements.txt"},
        "env": [{"name": "TOKEN", "valueFrom": key}],
        "envFrom": [{"prefix": "S_", "secretRef": {"name": "store"}}],
        "volumes": [{"name": "key", "mountPath": "/key", "secret": "store"}],
    }
    roles: dict[str, Any] = {"Chief": {}, "Worker": {}}
    return jobs.job(name, trainer=trainer, tfReplicaSpecs=roles)


def test_code_packages_settings_and_claims_reach_every_replica(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    volume = volumes.provide(namespace, "brought-results")
    body = job("brought", namespace, "addon")
    body["spec"]["trainer"]["checkpoint"] = {"claim": "results"}
    body["spec"]["volumeClaimTemplates"] = [objects.claim_template("results")]
    for _ in range(2):  # the second one finds the claim, and that it has ended
        namespace.apply(body)
        status = namespace.wait_ended("brought")["status"]
        assert status["state"] == "Succeeded", namespace.describe("brought")
        assert status["restarts"] == {"failure": 0, "disruption": 0}
        fetched = namespace.kubectl("logs", "brought-chief-0", f"-c{names.SOURCE_CONTAINER}")
        assert "Successfully installed addon-1.0" in fetched
        assert "Requirement already satisfied: numpy" in fetched
        namespace.kubectl("delete", "tfpj", "brought")
        namespace.wait_gone("brought")
    assert "brought/model.keras" in volume.list("brought")
    claim = json.loads(namespace.kubectl("get", "pvc", "brought-results", "--output=json"))
    assert claim["status"]["phase"] == "Bound"
    assert "ownerReferences" not in claim["metadata"]


def test_a_requirement_that_cannot_be_met_fails_the_job_with_its_name(
    namespace: kubectl_namespaces.KubectlNamespace, tmp_path: Path
) -> None:
    namespace.apply(job("greedy", namespace, "addon", "numpy==0.1"))
    status = namespace.wait_ended("greedy")["status"]
    [failed] = [condition for condition in status["conditions"] if condition["type"] == "Failed"]
    assert (failed["status"], failed["reason"]) == ("True", "SourceFailed")
    assert f"init container {names.SOURCE_CONTAINER} exited with code 78" in failed["message"]
    assert "The user requested numpy==0.1" in failed["message"]
    assert status["restarts"]["failure"] == 0
    shown = terminal.shell(namespace, tmp_path).run("tfparallel logs greedy")
    assert "The user requested numpy==0.1" in shown, "pip ran before the container that trains"
