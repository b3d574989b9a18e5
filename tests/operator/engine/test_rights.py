"""The rights that are installed are enough: in the whole cluster, and in some namespaces alone."""

import base64
import dataclasses
import datetime
import os
import pathlib
from collections.abc import Awaitable, Callable

import pytest
import yaml

from testing import waiting
from testing.cluster import console
from testing.operator import objects, operator_process, volcano
from testing.operator.namespaces import Namespace
from tfparallel.backends.local import ports
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import installation
from tfparallel_operator.engine.observe import pending_search

ACCOUNT = "tfparallel-operator"
SECRET = "tfparallel-operator-tls"
BASE = pathlib.Path(__file__).parents[3] / "manifests" / "base"
ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")


def _install(namespace: Namespace, folder: pathlib.Path) -> None:
    parts = [os.path.relpath(BASE / part, folder) for part in ("rbac", "manager")]
    content = {"namespace": namespace.name, "resources": parts}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content))
    namespace.kubectl("apply", "-k", str(folder))


async def _kubeconfig(namespace: Namespace, folder: pathlib.Path) -> str:
    """Write a kubeconfig with the service account's token in the place of the administrator."""
    content = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    token = namespace.kubectl("create", "token", ACCOUNT).strip()
    content["users"] = [{"name": content["users"][0]["name"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(yaml.safe_dump(content))
    await waiting.until_async(_has_rights(namespace), "the rights apply")
    return str(path)


def _has_rights(namespace: Namespace) -> Callable[[], Awaitable[bool]]:
    """Whether the API server has heard of the roles, which it does a moment later than we."""
    account = f"--as=system:serviceaccount:{namespace.name}:{ACCOUNT}"

    async def in_force() -> bool:
        try:
            for right in (("list", "pods"), ("list", "tfpj"), ("get", f"secrets/{SECRET}")):
                namespace.kubectl("auth", "can-i", *right, account)
        except console.ClusterError:
            return False
        return True

    return in_force


async def test_the_operator_works_with_the_rights_that_are_installed(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    _install(namespace, tmp_path)
    [port] = ports.allocate(1)
    arguments = {
        "KUBECONFIG": await _kubeconfig(namespace, tmp_path),
        "POD_NAMESPACE": namespace.name,
        "TFPARALLEL_LEASE": ACCOUNT,
        "TFPARALLEL_PROGRESS_HOST": "127.0.0.1",
        "TFPARALLEL_PROGRESS_PORT": str(port),
    }
    async with operator_process.running(arguments, tmp_path / "log") as operator:
        await operator.until_ready()
        await namespace.create_job(objects.job(volumeClaimTemplates=[objects.claim_template()]))
        await namespace.run_pods(*ALL)
        await namespace.end("digits-worker-0", 1)
        await namespace.until_pods(*ALL, attempt=2)
        await namespace.run_all()
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")
        await namespace.until_pods("digits-chief-0", attempt=2)
        namespace.change({"runPolicy": {"ttlSecondsAfterFinished": 0}})
        # The job is removed after its time to live.
        await namespace.until_gone(resources.JOBS.path(namespace.name, "digits"))
        assert "forbidden" not in operator.log
        assert '"level": "error"' not in operator.log
    claim = await namespace.api.get(resources.CLAIMS.path(namespace.name, "digits-data"))
    assert "ownerReferences" not in claim["metadata"]
    secret = await namespace.api.get(resources.SECRETS.path(namespace.name, SECRET))
    assert b"BEGIN CERTIFICATE" in base64.b64decode(secret["data"]["tls.crt"])
    events = await namespace.api.list(resources.EVENTS, namespace.name)
    assert "ChiefSucceeded" in {event["reason"] for event in events.items}


async def _revoke(namespace: Namespace, kubeconfig: str) -> None:
    """Give the service account another id, which its tokens name."""
    for verb in ("delete", "create"):
        namespace.kubectl(verb, "serviceaccount", ACCOUNT)

    async def is_refused() -> bool:
        try:
            namespace.kubectl("get", "tfpj", f"--kubeconfig={kubeconfig}")
        except console.ClusterError:
            return True
        return False

    await waiting.until_async(is_refused, "the API server refuses the token")


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_an_operator_whose_token_is_revoked_goes_on_with_the_next_one(
    namespace: Namespace, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, runs: bool
) -> None:
    """The API server itself takes a token that it knows for another 10 s."""
    _install(namespace, tmp_path)
    kubeconfig = await _kubeconfig(namespace, tmp_path)
    if not runs:
        await _revoke(namespace, kubeconfig)
    await namespace.create_job()
    async with namespace.operator(kubeconfig=kubeconfig):
        if runs:
            await namespace.until_pods(*ALL)
            await _revoke(namespace, kubeconfig)
            await namespace.create_job(objects.job("later", workers=0))

        async def is_refused() -> bool:
            return "Unauthorized" in caplog.text

        await waiting.until_async(is_refused, "the operator is refused")
        await _kubeconfig(namespace, tmp_path)
        await namespace.until_pods(*ALL, *(["later-chief-0"] if runs else []))


CHART = pathlib.Path(__file__).parents[3] / "charts" / "tfparallel-operator"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def _install_roles(namespace: Namespace, *more: str) -> None:
    """Install the rights of the chart for one namespace, by Roles alone."""
    chosen = ("rbac.clusterRights=false", f"watchNamespaces={{{namespace.name}}}", *more)
    values = [part for value in chosen for part in ("--set", value)]
    rendered = namespace.cluster.run_helm(
        "template", ACCOUNT, str(CHART), "--namespace", namespace.name, *values
    )
    documents = [document for document in yaml.safe_load_all(rendered) if document]
    rights = [document for document in documents if document["kind"] in RIGHTS]
    assert not [document for document in rights if document["kind"].startswith("Cluster")]
    namespace.kubectl(
        "apply", "-f", "-", body={"apiVersion": "v1", "kind": "List", "items": rights}
    )


async def test_roles_in_its_namespaces_are_enough_for_the_operator(
    namespace: Namespace, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = dataclasses.replace(namespace, name=f"{namespace.name}-other")
    await other.create_namespace()
    _install_roles(namespace)
    await other.create_job()
    async with namespace.operator(kubeconfig=await _kubeconfig(namespace, tmp_path)):
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")
        await namespace.until_pods("digits-chief-0")
    assert await other.pods() == {}
    assert "forbidden" not in caplog.text
    await other.delete_jobs()


async def test_the_rights_are_enough_to_restrict_secrets(
    namespace: Namespace, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    _install_roles(namespace, "jobs.restrictions.secrets.matchLabels.use=jobs")
    namespace.kubectl("create", "secret", "generic", "hub")
    namespace.kubectl("label", "secret", "hub", "use=jobs")
    volume = {"name": "keys", "secret": {"secretName": "hub"}}
    worker = {"replicas": 1, "template": objects.template(volumes=[volume])}
    limits = installation.Restrictions(secret_labels={"use": "jobs"})
    kubeconfig = await _kubeconfig(namespace, tmp_path)
    async with namespace.operator(kubeconfig=kubeconfig, restrictions=limits):
        job = objects.job()
        await namespace.create_job({**job, "spec": {"tfReplicaSpecs": {"Worker": worker}}})
        await namespace.until_pods("digits-worker-0")
    assert "forbidden" not in caplog.text


async def test_the_rights_are_enough_for_gangs(
    namespace: Namespace, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    _install(namespace, tmp_path)
    namespace.kubectl("apply", "-f", "-", body=volcano.definition())
    path = volcano.POD_GROUPS.path(namespace.name, "digits")
    job = objects.job(scheduling={"gang": "Volcano"}, runPolicy={"scaleCooldownSeconds": 0})
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    try:
        async with namespace.operator(kubeconfig=await _kubeconfig(namespace, tmp_path)):
            await namespace.create_job(job)
            await namespace.until_pods(*ALL)
            assert (await namespace.api.get(path))["spec"]["minMember"] == 3
            namespace.kubectl("scale", "tfpj", "digits", "--replicas=3")
            await namespace.until_pods(*ALL, "digits-worker-2", attempt=2)
            assert (await namespace.api.get(path))["spec"]["minMember"] == 4
            namespace.change({"runPolicy": {"suspend": True}})
            await namespace.until_gone(path)
        assert "forbidden" not in caplog.text
    finally:
        name = volcano.definition()["metadata"]["name"]
        namespace.kubectl("delete", "crd", name)


async def test_the_rights_are_enough_to_say_why_a_pod_waits(
    namespace: Namespace,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The API server selects Events by their pod and by their claim; no claim has a volume here."""
    monkeypatch.setattr(pending_search, "FIRST_LOOK", datetime.timedelta())
    _install(namespace, tmp_path)
    job = objects.job(workers=0, volumeClaimTemplates=[objects.claim_template()])
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "digits-data"}}
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"]["spec"]["volumes"] = [volume]
    async with namespace.operator(kubeconfig=await _kubeconfig(namespace, tmp_path)):
        await namespace.create_job(job)
        status = await namespace.until_reason("Chief", '"digits-data" names no StorageClass')
    assert "forbidden" not in caplog.text
    [running] = [condition for condition in status["conditions"] if condition["type"] == "Running"]
    assert (
        "Delete the claim digits-data and create it with a storageClassName" in running["message"]
    )


@pytest.mark.parametrize("source", ["kustomize", "chart"])
async def test_a_role_that_edits_jobs_may_scale_them(
    namespace: Namespace, tmp_path: pathlib.Path, source: str
) -> None:
    if source == "chart":
        command = ("template", ACCOUNT, str(CHART), "--namespace", namespace.name)
        rendered = namespace.cluster.run_helm(*command)
    else:
        rendered = namespace.kubectl("kustomize", str(BASE / "rbac"))
    label = "rbac.authorization.k8s.io/aggregate-to-edit"
    roles = [
        document
        for document in yaml.safe_load_all(rendered)
        if document and document["kind"] == "ClusterRole"
    ]
    [edit] = [role for role in roles if label in role["metadata"].get("labels", {})]
    # The light cluster aggregates no roles: the user has this one alone.
    role = {**edit, "kind": "Role", "metadata": {"name": "edit", "namespace": namespace.name}}
    namespace.kubectl("apply", "-f", "-", body=role)
    namespace.kubectl("create", "rolebinding", "jane", "--role=edit", "--user=jane")
    job = objects.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 4
    await namespace.create_job(job)

    async def in_force() -> bool:
        try:
            namespace.kubectl("auth", "can-i", "get", "tfpj", "--as=jane")
        except console.ClusterError:
            return False
        return True

    await waiting.until_async(in_force, "the role applies")
    namespace.kubectl("scale", "tfpj", "digits", "--replicas=3", "--as=jane")
    [scaled] = (await namespace.api.list(resources.JOBS, namespace.name)).items
    assert scaled["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] == 3
