"""A second scheduler, with the plugin Coscheduling, next to that of Kubernetes."""

import json

from testing.cluster import binaries, controlplane, handle, pki, state

NAME = "scheduler-plugins-scheduler"
MODULE = "coscheduling"
DEPENDENCY = "sigs.k8s.io/scheduler-plugins"
RESOURCES = "manifests/coscheduling/crd.yaml"
CRD = "podgroups.scheduling.x-k8s.io"


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: controlplane.Plan, cluster: handle.Cluster
) -> None:
    """Install its PodGroups and start it; it schedules the pods that name it."""
    binaries.ensure([MODULE])
    cluster.run_kubectl("apply", "-f", "-", input=pod_groups())
    cluster.wait_established(CRD)
    path = ledger.directory / "keys" / "coscheduling.kubeconfig"
    authority.kubeconfig(path, plan.server, "coscheduling", pki.ADMINISTRATORS)
    configuration = ledger.directory / "coscheduling.json"
    configuration.write_text(json.dumps(_configuration(str(path))), encoding="utf-8")
    arguments = [f"--config={configuration}", "--secure-port=0"]
    ledger.start(MODULE, [*plan.enter, str(binaries.path(MODULE)), *arguments])


def pod_groups() -> str:
    """The definition of its PodGroups, as it is published."""
    return binaries.published(MODULE, DEPENDENCY, RESOURCES)


def _configuration(kubeconfig: str) -> dict[str, object]:
    name = [{"name": "Coscheduling"}]
    plugins = {
        "multiPoint": {"enabled": name},
        "queueSort": {"enabled": name, "disabled": [{"name": "*"}]},
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig},
        "profiles": [{"schedulerName": NAME, "plugins": plugins}],
    }
