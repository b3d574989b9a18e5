"""`tfparallel validate --server` on a real API server."""

import pathlib

import pytest
import yaml

from testing import invocation
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import errors, resources

GOOD = """\
apiVersion: tfparallel.dev/v1alpha1
kind: TFParallelJob
metadata:
  name: digits
spec:
  trainer: {epochs: 1}
  tfReplicaSpecs:
    Worker: {}
"""


def _validate(
    namespace: Namespace, file: pathlib.Path, kubeconfig: pathlib.Path | None = None
) -> invocation.Ended:
    where = ("-n", namespace.name, "--kubeconfig", str(kubeconfig or namespace.cluster.kubeconfig))
    return invocation.run("validate", "--server", str(file), *where)


async def test_the_api_server_is_asked_and_stores_nothing(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(GOOD)
    done = _validate(namespace, file)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}: valid\n", "")
    with pytest.raises(errors.NotFound):
        await namespace.api.get(resources.JOBS.path(namespace.name, "digits"))
    await namespace.create_job()
    assert _validate(namespace, file).returncode == 0


async def test_what_it_refuses_has_file_and_line(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    """An owner is nothing that this command checks by itself."""
    file = tmp_path / "job.yaml"
    wrong = GOOD.replace("spec:\n", "  ownerReferences:\n  - {kind: Job}\nspec:\n")
    file.write_text(f"{GOOD}---\n{wrong}")
    done = _validate(namespace, file)
    assert done.returncode == 2
    assert done.stdout == f"{file}:1: digits: valid\n"
    assert done.stderr.startswith(f"error: {file}:15: metadata.ownerReferences[0].apiVersion")


async def test_a_missing_right_is_reported(namespace: Namespace, tmp_path: pathlib.Path) -> None:
    file, kubeconfig = tmp_path / "job.yaml", tmp_path / "config"
    file.write_text(GOOD)
    config = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    where = f"--namespace={namespace.name}"
    token = namespace.cluster.run_kubectl(where, "create", "token", "default").strip()
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    kubeconfig.write_text(yaml.safe_dump(config))
    done = _validate(namespace, file, kubeconfig)
    assert done.returncode == 1
    assert f"{namespace.name}:default may not create tfparalleljobs" in done.stderr
