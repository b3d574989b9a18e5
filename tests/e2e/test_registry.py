"""The page on your cluster, with a registry that wants a password: images go and come."""

from collections.abc import Iterator

import pytest

from images import targets
from testing import pages, paths
from testing.cluster import handle, registry, settings
from testing.e2e import jobs, kubectl_namespaces, operator, terminal
from testing.image_cache import build, store

pytestmark = [pytest.mark.timeout(1800)]

PAGE = paths.PAGES / "get-started/your-cluster.md"
HOST = "registry.example"
PLACEHOLDER = f"{HOST}/team"
SECRET = "registry"
ACCOUNT = f"--username={registry.USER} --password={registry.PASSWORD}"


@pytest.fixture(scope="module")
def shell(
    module_namespace: kubectl_namespaces.KubectlNamespace, tmp_path_factory: pytest.TempPathFactory
) -> terminal.Shell:
    """A terminal where buildah has the base image of the tests, and no other engine is chosen."""
    folder = tmp_path_factory.mktemp("push")
    shell = terminal.shell(module_namespace, folder)
    base = store.ensure_base(build.folder(), folder / "base.log")
    more = {
        "ENGINE": "buildah",
        "BASE_IMAGE": base,
        "REGISTRY_AUTH_FILE": str(folder / "passwords.json"),
    }
    variables = store.variables(build.folder(), folder / "storage.conf")
    return terminal.Shell({**shell.environment, **more, **variables})


@pytest.fixture(scope="module")
def registry_address(
    cluster: handle.Cluster, shell: terminal.Shell, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where the operator's image was pushed to: the first push fails without a password."""
    if cluster.mode == settings.Kind.mode:
        pytest.skip("A registry inside a cluster needs root.")
    with registry.running(cluster, tmp_path_factory.mktemp("registry")) as running:
        where = f"{running.address}/team"
        [push] = [
            command.line.replace(PLACEHOLDER, where)
            for command in pages.find_commands(PAGE, f"make images REGISTRY={PLACEHOLDER}")
        ]
        with pytest.raises(AssertionError) as refused:
            shell.run(f"{push} TARGETS=operator")
        assert f"error: buildah cannot push {where}/{targets.OPERATOR.reference}: " in str(
            refused.value
        )
        assert f"`buildah login {running.address}`" in str(refused.value)
        shell.run(f"buildah login --tls-verify=false {ACCOUNT} {running.address}")
        output = shell.run(f"{push} TARGETS=operator")
        assert output.splitlines()[-1] == f"{where}/{targets.OPERATOR.reference}"
        yield where


def _line(command: pages.PageCommand, registry_address: str) -> str:
    """A command of the page with the registry of the test; the trainer's image was not pushed."""
    line = command.line.replace(PLACEHOLDER, registry_address).replace(
        HOST, registry_address.partition("/")[0]
    )
    line = line.replace("-username=you", f"-username={registry.USER}")
    line = line.replace("-password=secret", f"-password={registry.PASSWORD}")
    if line.startswith("helm install"):
        line += f" --set trainer.image.repository={targets.OPERATOR.repository}"
    return line


@pytest.fixture(scope="module")
def pulled(
    cluster: handle.Cluster,
    module_namespace: kubectl_namespaces.KubectlNamespace,
    shell: terminal.Shell,
    registry_address: str,
) -> Iterator[kubectl_namespaces.KubectlNamespace]:
    """The operator runs from the registry, as the page installs it."""
    try:
        operator.uninstall(cluster)
        cluster.run_kubectl("delete", "namespace", operator.NAMESPACE, "--timeout=120s")
        for command in pages.find_commands(PAGE, "kubectl create namespace"):
            if not command.line.startswith("helm test"):  # It trains: the trainer was not pushed.
                shell.run(_line(command, registry_address))
        yield module_namespace
    finally:
        operator.install(cluster)
        cluster.run_kubectl("delete", "secret", SECRET, operator.WHERE, "--ignore-not-found")


def test_the_operator_comes_from_the_registry(
    cluster: handle.Cluster, pulled: kubectl_namespaces.KubectlNamespace, registry_address: str
) -> None:
    image = "--output=jsonpath={.items[*].spec.containers[*].image}"
    selector = "--selector=app.kubernetes.io/component=operator"
    images = cluster.run_kubectl("get", "pods", operator.WHERE, selector, image).split()
    assert f"{registry_address}/{targets.OPERATOR.reference}" in images


def test_pods_of_jobs_pull_with_the_same_secret(
    pulled: kubectl_namespaces.KubectlNamespace, registry_address: str
) -> None:
    container = {
        "name": "tensorflow",
        "command": ["python", "-c", "print('pulled')"],
        "imagePullPolicy": "Always",
    }
    template = {"spec": {"containers": [container]}}
    trainer = {"module": "model.py", "epochs": 1, "globalBatchSize": 1}
    pulled.apply(
        jobs.job("pulled", trainer=trainer, tfReplicaSpecs={"Worker": {"template": template}})
    )
    job = pulled.wait_ended("pulled")
    assert job["status"]["state"] == "Succeeded", pulled.describe("pulled")
    [pod] = pulled.pods("pulled").values()
    assert pod["spec"]["imagePullSecrets"] == [{"name": SECRET}]
    [running] = pod["spec"]["containers"]
    assert running["image"] == f"{registry_address}/{targets.OPERATOR.reference}"
