"""Kueue, with the webhooks that check its own objects; its certificates are the cluster's."""

import base64
import json
import shutil
import subprocess
from typing import Any

import yaml

from testing.cluster import binaries, controlplane, handle, pki, process, state
from tfparallel.backends.local import ports

MODULE = "kueue"
DEPENDENCY = "sigs.k8s.io/kueue"
GROUP = "kueue.x-k8s.io"
KINDS = (
    "admissionchecks",
    "clusterqueues",
    "cohorts",
    "localqueues",
    "resourceflavors",
    "topologies",
    "workloadpriorityclasses",
    "workloads",
)
WEBHOOKS = "config/components/webhook/manifests.yaml"
START_LIMIT_SECONDS = 60.0


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, cluster: handle.Cluster
) -> None:
    """Install Kueue and wait until it answers."""
    binaries.ensure([MODULE])
    install_resources(cluster)
    webhook, health = ports.allocate(2)
    path = ledger.directory / "keys" / "kueue.kubeconfig"
    authority.kubeconfig(path, plan.server, "kueue", pki.ADMINISTRATORS)
    certificates = ledger.directory / "keys" / "kueue-webhook"
    certificates.mkdir()
    issued = authority.issue("kueue-webhook-server", "kueue", hosts=[controlplane.LOOPBACK])
    shutil.copy(issued.certificate, certificates / "tls.crt")
    shutil.copy(issued.key, certificates / "tls.key")
    configuration = ledger.directory / "kueue.json"
    content = _configuration(webhook, health, str(certificates))
    configuration.write_text(json.dumps(content), encoding="utf-8")
    arguments = [f"--config={configuration}", f"--kubeconfig={path}"]
    ledger.start(MODULE, [*plan.enter, str(binaries.path(MODULE)), *arguments])
    ledger.wait_until("Kueue", lambda: _listens(plan, webhook), START_LIMIT_SECONDS)
    bundle = base64.b64encode(authority.ca.certificate.read_bytes()).decode()
    cluster.run_kubectl("create", "-f", "-", input=_webhooks(webhook, bundle))


def install_resources(cluster: handle.Cluster) -> None:
    """Define Kueue's resources as they are published: all but those for several clusters."""
    for kind in KINDS:
        file = f"config/components/crd/bases/{GROUP}_{kind}.yaml"
        definition = binaries.published(MODULE, DEPENDENCY, file)
        # Too large for what `apply` remembers.
        cluster.run_kubectl("create", "-f", "-", input=definition)
    for kind in KINDS:
        cluster.wait_established(f"{kind}.{GROUP}")


def _configuration(webhook: int, health: int, certificates: str) -> dict[str, object]:
    host = controlplane.LOOPBACK
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"{host}:{health}"},
        "webhook": {"host": host, "port": webhook, "certDir": certificates},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["pod"]},  # The only kind that this build knows; unused.
    }


def _webhooks(port: int, bundle: str) -> str:
    """The published webhooks of Kueue's own group, called on loopback instead of by a Service."""
    webhooks = []
    published = binaries.published(MODULE, DEPENDENCY, WEBHOOKS)
    for manifest in yaml.safe_load_all(published):
        manifest["metadata"]["name"] = f"kueue-{manifest['kind'].lower()}"
        manifest["webhooks"] = [
            _on_loopback(webhook, port, bundle)
            for webhook in manifest["webhooks"]
            if all(GROUP in rule["apiGroups"] for rule in webhook["rules"])
        ]
        webhooks.append(manifest)
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": webhooks})


def _on_loopback(webhook: dict[str, Any], port: int, bundle: str) -> dict[str, Any]:
    path = webhook["clientConfig"]["service"]["path"]
    address = f"https://{controlplane.LOOPBACK}:{port}{path}"
    return {**webhook, "clientConfig": {"url": address, "caBundle": bundle}}


def _listens(plan: controlplane.Plan, port: int) -> bool:
    """Whether its webhooks can be called, from where the API server calls them."""
    connect = f"< /dev/tcp/{controlplane.LOOPBACK}/{port}"
    command = [*plan.enter, "bash", "-c", connect]
    asked = subprocess.run(
        command, env=process.environment(), capture_output=True, check=False, timeout=5
    )
    return asked.returncode == 0
