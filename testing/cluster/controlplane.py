"""etcd, the API server, the controller manager and the scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

from testing.cluster import binaries, console, handle, pki, settings, state
from tfparallel.backends.local import ports

SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
LOOPBACK = "127.0.0.1"
START_LIMIT_SECONDS = 180.0
GANG_FEATURES = {
    settings.Release.NEWEST: "GenericWorkload=true",
    settings.Release.ALPHA_GANGS: "GenericWorkload=true,GangScheduling=true",
}
GANG_VERSIONS = {
    settings.Release.NEWEST: "v1beta1",
    settings.Release.ALPHA_GANGS: "v1alpha2",
}


@dataclass(frozen=True)
class Plan:
    """Where a control plane listens, how its processes are started and how it is reached.

    `enter` is put before every command (nothing for the host itself); `outside_port` is where
    the host finds the API server, `inside` the address by which the components find it.
    """

    inside: str
    port: int
    outside_port: int
    etcd_port: int
    etcd_peer_port: int
    flags: tuple[str, ...]
    enter: tuple[str, ...] = ()
    gang_scheduling: bool = False
    release: settings.Release = settings.Release.NEWEST

    @property
    def server(self) -> str:
        return f"https://{self.inside}:{self.port}"

    def features(self) -> list[str]:
        """The flags of all components; gangs of Kubernetes are off without them."""
        return [f"--feature-gates={GANG_FEATURES[self.release]}"] if self.gang_scheduling else []

    def apis(self) -> list[str]:
        """The flags of the API server for groups that are off without them."""
        if not self.gang_scheduling:
            return []
        return [f"--runtime-config=scheduling.k8s.io/{GANG_VERSIONS[self.release]}=true"]


def loopback_plan(cluster_settings: settings.Light) -> Plan:
    """A control plane on free ports of loopback, for clusters whose nodes are not real."""
    api, etcd, peer = ports.allocate(3)
    # The only address is loopback, which the API server refuses to advertise.
    flags = [f"--bind-address={LOOPBACK}", f"--advertise-address={LOOPBACK}"]
    flags.append("--endpoint-reconciler-type=none")
    if not cluster_settings.controllers:
        # Nobody makes the service accounts that this would wait for.
        flags.append("--disable-admission-plugins=ServiceAccount")
    return Plan(
        LOOPBACK,
        api,
        api,
        etcd,
        peer,
        tuple(flags),
        gang_scheduling=cluster_settings.gang_scheduling,
        release=cluster_settings.release,
    )


def start(
    ledger: state.Ledger, authority: pki.Authority, plan: Plan, cluster: handle.Cluster
) -> None:
    """Start etcd and the API server, and wait until the API server is ready."""
    _start_etcd(ledger, authority, plan)
    _start_api_server(ledger, authority, plan)
    outside = f"https://{LOOPBACK}:{plan.outside_port}"
    authority.kubeconfig(cluster.kubeconfig, outside, "administrator", pki.ADMINISTRATORS)
    console.say("waiting for the API server")
    ledger.wait_until("the API server", lambda: answers(cluster), START_LIMIT_SECONDS)


def start_controllers(
    ledger: state.Ledger, authority: pki.Authority, plan: Plan, cluster: handle.Cluster
) -> None:
    """Start the controller manager and the scheduler, and wait until both have acted once."""
    keys = ledger.directory / "keys"
    common = ["--leader-elect=false", "--secure-port=0", *plan.features()]
    for name in ("kube-controller-manager", "kube-scheduler"):
        authority.kubeconfig(keys / f"{name}.kubeconfig", plan.server, f"system:{name}")
    manager = [
        f"--kubeconfig={keys / 'kube-controller-manager.kubeconfig'}",
        f"--root-ca-file={authority.ca.certificate}",
        f"--service-account-private-key-file={keys / 'service-accounts.key'}",
        f"--cluster-signing-cert-file={authority.ca.certificate}",
        f"--cluster-signing-key-file={authority.ca.key}",
        "--use-service-account-credentials=true",
        # By default 20 calls a second: the children of ended jobs would wait to be collected.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--horizontal-pod-autoscaler-sync-period=2s",
        f"--flex-volume-plugin-dir={ledger.directory / 'volume-plugins'}",
    ]
    _launch(ledger, plan, "kube-controller-manager", [*manager, *common])
    scheduler = [f"--kubeconfig={keys / 'kube-scheduler.kubeconfig'}"]
    _launch(ledger, plan, "kube-scheduler", [*scheduler, *common])
    ledger.wait_until("the controllers", lambda: _has_account(cluster), START_LIMIT_SECONDS)


def answers(cluster: handle.Cluster) -> bool:
    """Whether the API server says that it is ready."""
    try:
        return cluster.run_kubectl("get", "--raw", "/readyz") == "ok"
    except console.ClusterError:
        return False


def _has_account(cluster: handle.Cluster) -> bool:
    account = cluster.run_kubectl(
        "get", "serviceaccount", "default", "--ignore-not-found", "-oname"
    )
    return bool(account)


def _start_etcd(ledger: state.Ledger, authority: pki.Authority, plan: Plan) -> None:
    pair = authority.issue("etcd", "etcd", hosts=[LOOPBACK])
    client = f"https://{LOOPBACK}:{plan.etcd_port}"
    peer = f"http://{LOOPBACK}:{plan.etcd_peer_port}"
    arguments = [
        f"--data-dir={ledger.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        f"--cert-file={pair.certificate}",
        f"--key-file={pair.key}",
        f"--trusted-ca-file={authority.ca.certificate}",
        "--client-cert-auth=true",
        # The data live as long as the tests: losing them to a power cut is not a loss.
        "--unsafe-no-fsync=true",
    ]
    _launch(ledger, plan, "etcd", arguments)


def _start_api_server(ledger: state.Ledger, authority: pki.Authority, plan: Plan) -> None:
    names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"]
    names += ["kubernetes.default.svc.cluster.local", "localhost"]
    hosts = [*names, LOOPBACK, API_SERVICE_ADDRESS, plan.inside]
    serving = authority.issue("kube-apiserver", "kube-apiserver", hosts=hosts)
    accounts = authority.issue("service-accounts", "service-accounts")
    client = authority.issue("kube-apiserver-client", "kube-apiserver", pki.ADMINISTRATORS)
    arguments = [
        f"--secure-port={plan.port}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        f"--client-ca-file={authority.ca.certificate}",
        f"--tls-cert-file={serving.certificate}",
        f"--tls-private-key-file={serving.key}",
        f"--etcd-servers=https://{LOOPBACK}:{plan.etcd_port}",
        f"--etcd-cafile={authority.ca.certificate}",
        f"--etcd-certfile={client.certificate}",
        f"--etcd-keyfile={client.key}",
        f"--kubelet-certificate-authority={authority.ca.certificate}",
        f"--kubelet-client-certificate={client.certificate}",
        f"--kubelet-client-key={client.key}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-signing-key-file={accounts.key}",
        f"--service-account-key-file={accounts.certificate}",
        "--allow-privileged=true",
        *plan.apis(),
        *plan.features(),
        *plan.flags,
    ]
    _launch(ledger, plan, "kube-apiserver", arguments)


def _launch(ledger: state.Ledger, plan: Plan, name: str, arguments: Sequence[str]) -> None:
    [program] = binaries.of_release(plan.release, [name])
    ledger.start(name, [*plan.enter, str(binaries.path(program)), *arguments])
