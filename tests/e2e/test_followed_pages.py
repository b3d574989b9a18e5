"""The pages on kind and on Secrets, followed word by word.

In continuous integration, test_digits.py follows the README, test_command.py submits and deletes,
and test_sources.py and test_registry.py have Secrets in these places.
"""

import dataclasses
from pathlib import Path

import pytest
import yaml

from testing import pages, paths
from testing.cluster import handle
from testing.e2e import kubectl_namespaces, modules, operator, terminal, volumes

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

MODEL = modules.dense(
    "import os",
    before_data=(
        'values = (os.environ["HUB_TOKEN"], os.environ["AWS_REGION"], open("/keys/token").read())',
        'assert values == ("s3cr3t", "eu-west-3", "s3cr3t"), values',
    ),
)


@pytest.fixture
def shell(namespace: kubectl_namespaces.KubectlNamespace, tmp_path: Path) -> terminal.Shell:
    """A terminal in a folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    return dataclasses.replace(terminal.shell(namespace, tmp_path), folder=folder)


def test_the_page_on_kind_leads_to_a_model(
    cluster: handle.Cluster, namespace: kubectl_namespaces.KubectlNamespace, shell: terminal.Shell
) -> None:
    volumes.provide(namespace, "digits")
    for name in ("charts", "examples"):
        (shell.folder / name).symlink_to(paths.ROOT / name)
    _, *blocks = pages.blocks(
        paths.PAGES / "get-started/kind.md", "console"
    )  # the images are on the node
    try:
        operator.uninstall(cluster)
        for block in blocks:
            for command in pages.commands(block):
                shell.follow(command)
    finally:
        operator.install(cluster)
    assert (shell.folder / "digits-model/model.keras").stat().st_size > 0
    left = namespace.kubectl("get", "tfpj,pods,persistentvolumeclaims", "--output=name")
    assert left == ""


def test_secrets_reach_every_replica_as_the_page_says(
    namespace: kubectl_namespaces.KubectlNamespace, shell: terminal.Shell
) -> None:
    page = paths.PAGES / "how-to/secrets.md"
    job, *additions = map(yaml.safe_load, pages.blocks(page, "yaml"))
    for addition in additions:
        job["spec"]["trainer"] |= addition["trainer"]
    (shell.folder / "job.yaml").write_text(yaml.safe_dump(job))
    (shell.folder / "model.py").write_text(MODEL)
    variables, pull = pages.blocks(page, "console")
    *before, submit = [*pages.commands(pull), *pages.commands(variables)]
    for command in before:
        shell.follow(command)
    last = shell.follow(submit)[-1]
    assert last.startswith("Succeeded: private")  # and offers no model: the job keeps none
    pods = namespace.pods("private").values()
    assert all(pod["spec"]["imagePullSecrets"] == [{"name": "registry"}] for pod in pods)
    assert "s3cr3t" not in namespace.kubectl("get", "tfpj,pods", "--output=yaml")
