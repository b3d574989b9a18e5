"""What the chart installs for Prometheus, Grafana and the network."""

import json
import re
from collections.abc import Iterator

import pytest

from testing import pages, paths
from testing.operator import rendering
from tfparallel_operator.api import load, names
from tfparallel_operator.engine.telemetry import metrics

pytestmark = pytest.mark.timeout(1200)  # the first run builds helm and kubectl

MONITORING = ("metrics.serviceMonitor", "metrics.prometheusRule", "metrics.dashboard")
_SERIES = re.compile(
    r"\b((?:tfparallel|process)_\w+?)(?:_bucket|_count|_sum)?\b(?:\{(.*?)\})?(?!\w)"
)


def expressions(chart: rendering.Render) -> Iterator[str]:
    """What alerts and dashboard ask Prometheus."""
    objects = chart("metrics.prometheusRule.enabled=true", "metrics.dashboard.enabled=true")
    [group] = objects.one("PrometheusRule")["spec"]["groups"]
    yield from (rule["expr"] for rule in group["rules"])
    for panel in dashboard(objects)["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def dashboard(objects: rendering.Objects) -> rendering.Manifest:
    """The dashboard of the ConfigMap."""
    [text] = objects.one("ConfigMap")["data"].values()
    document: rendering.Manifest = json.loads(text)
    return document


def test_alerts_and_dashboard_ask_for_metrics_and_labels_that_the_operator_exports(
    chart: rendering.Render,
) -> None:
    exported = {
        row[0]: {*re.findall(r"\w+", row[2])}
        for row in pages.rows("operate/metrics.md", "## The operator's own")
    }
    counted = 0
    for expression in expressions(chart):
        for name, selectors in _SERIES.findall(expression):
            if name.startswith("process_"):
                assert name in ("process_cpu_seconds_total", "process_resident_memory_bytes")
                continue
            assert name in exported, expression
            used = {*re.findall(r"(\w+)(?:=|!=|=~|!~)\"", selectors)}
            used |= {*re.findall(r"by \((\w+(?:, \w+)*)\)", expression.replace("le)", ")"))}
            used = {label for names_of_clause in used for label in names_of_clause.split(", ")} - {
                "le"
            }
            assert used <= exported[name] | {""}, expression
            counted += 1
    assert counted > 20


def test_outcomes_and_states_of_alerts_are_those_that_there_are(chart: rendering.Render) -> None:
    values = {
        "outcome": {*metrics.ReconcileResult},
        "state": {*names.State},
        "resource": {names.PLURAL},
    }
    for expression in expressions(chart):
        for label, value in re.findall(r"(outcome|state|resource)!?=\"(\w+)\"", expression):
            assert value in values[label], expression


def test_each_alert_says_what_to_do(chart: rendering.Render) -> None:
    objects = chart("metrics.prometheusRule.enabled=true")
    [group] = objects.one("PrometheusRule")["spec"]["groups"]
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()


def test_panels_of_the_dashboard_do_not_overlap(chart: rendering.Render) -> None:
    panels = dashboard(chart("metrics.dashboard.enabled=true"))["panels"]
    places = [panel["gridPos"] for panel in panels]
    cells = [
        (panel["x"] + column, panel["y"] + line)
        for panel in places
        for column in range(panel["w"])
        for line in range(panel["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23


def test_the_prometheus_operator_discovers_the_metrics(chart: rendering.Render) -> None:
    assert chart().of_kind("ServiceMonitor", "PrometheusRule", "ConfigMap", "NetworkPolicy") == []
    objects = chart(
        "metrics.serviceMonitor.enabled=true",
        "metrics.serviceMonitor.interval=15s",
        "metrics.serviceMonitor.labels.release=prometheus",
        "metrics.serviceMonitor.scrapeTimeout=10s",
        "metrics.serviceMonitor.namespace=monitoring",
        "metrics.serviceMonitor.relabelings[0].action=drop",
        "ports.health=9090",
    )
    monitor, service = objects.one("ServiceMonitor"), objects.one("Service")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    chosen = monitor["spec"]["selector"]["matchLabels"].items()
    assert chosen <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"] == [
        {
            "port": "metrics",
            "path": metrics.PATH,
            "interval": "15s",
            "scrapeTimeout": "10s",
            "relabelings": [{"action": "drop"}],
        }
    ]
    assert monitor["metadata"]["namespace"] == "monitoring"
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": [rendering.NAMESPACE]}
    [port] = [
        service_port
        for service_port in service["spec"]["ports"]
        if service_port["name"] == "metrics"
    ]
    [target] = [
        container_port
        for container_port in rendering.container(objects)["ports"]
        if container_port["name"] == port["targetPort"]
    ]
    port_number = rendering.environment(objects)["TFPARALLEL_HEALTH_PORT"]
    assert str(target["containerPort"]) == str(port["port"]) == port_number == "9090"


def test_alerts_and_dashboard_go_where_their_readers_look(chart: rendering.Render) -> None:
    objects = chart(
        "metrics.prometheusRule.enabled=true",
        "metrics.prometheusRule.namespace=monitoring",
        "metrics.prometheusRule.labels.release=prometheus",
        "metrics.dashboard.enabled=true",
        "metrics.dashboard.namespace=grafana",
        "metrics.dashboard.annotations.grafana_folder=Training",
    )
    rule, board = objects.one("PrometheusRule")["metadata"], objects.one("ConfigMap")["metadata"]
    assert (rule["namespace"], rule["labels"]["release"]) == ("monitoring", "prometheus")
    assert (board["namespace"], board["labels"]["grafana_dashboard"]) == ("grafana", "1")
    assert board["annotations"] == {"grafana_folder": "Training"}


def test_without_metrics_no_port_is_announced(chart: rendering.Render) -> None:
    objects = chart("metrics.enabled=false")
    assert rendering.environment(objects)["TFPARALLEL_METRICS"] == "false"
    assert [port["name"] for port in objects.one("Service")["spec"]["ports"]] == ["progress"]


def test_the_network_policy_lets_pods_of_jobs_report(chart: rendering.Render) -> None:
    objects = chart("networkPolicy.enabled=true")
    policy = objects.one("NetworkPolicy")["spec"]
    pods = objects.one("Deployment")["spec"]["selector"]
    assert policy["podSelector"] == pods
    assert policy["policyTypes"] == ["Ingress"]
    jobs = {"matchLabels": {names.LABEL_MANAGED_BY: names.MANAGED_BY}}
    assert policy["ingress"] == [
        {
            "ports": [{"port": "progress"}],
            "from": [{"namespaceSelector": {}, "podSelector": jobs}],
        }
    ]
    ports = {port["name"] for port in rendering.container(objects)["ports"]}
    assert ports == {"progress", "health"}


def test_peers_of_the_network_policy_can_be_chosen(chart: rendering.Render) -> None:
    policy = chart(
        "networkPolicy.enabled=true",
        "networkPolicy.progressFrom[0].ipBlock.cidr=10.0.0.0/8",
        "networkPolicy.metricsFrom[0].ipBlock.cidr=10.1.0.0/16",
        "networkPolicy.egress[0].ports[0].port=443",
    ).one("NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [
        {"ports": [{"port": "progress"}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        {"ports": [{"port": "health"}], "from": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]},
    ]
    assert policy["egress"] == [{"ports": [{"port": 443}]}]


@pytest.mark.parametrize("selector", ["operator", "test"])
def test_only_the_operator_is_selected(helm: rendering.Command, selector: str) -> None:
    flags = ("--namespace", rendering.NAMESPACE, "--set", "networkPolicy.enabled=true")
    done = helm("template", "blue", str(paths.CHART), *flags)
    objects = rendering.Objects.parse(done.stdout)
    labels = {
        "operator": objects.one("Deployment")["spec"]["template"]["metadata"]["labels"],
        "test": objects.one("Pod")["metadata"]["labels"],
    }[selector]
    chosen = objects.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    assert (chosen.items() <= labels.items()) == (selector == "operator")
    assert objects.one("Service")["spec"]["selector"] == chosen


def test_the_job_of_helm_test_is_one_that_the_operator_runs(helm: rendering.Command) -> None:
    values = "watchNamespaces={team-a,team-b},test.timeoutSeconds=33"
    done = helm("template", "blue", str(paths.CHART), "--set", values)
    objects = rendering.Objects.parse(done.stdout)
    job, pod, code = (objects.one(kind) for kind in (names.KIND, "Pod", "ConfigMap"))
    hooks = [manifest["metadata"]["annotations"] for manifest in (code, job, pod)]
    assert {hook["helm.sh/hook"] for hook in hooks} == {"test"}
    assert [hook["helm.sh/hook-weight"] for hook in hooks] == ["0", "1", "2"]
    assert job["metadata"]["namespace"] == code["metadata"]["namespace"] == "team-a"
    assert load.parse_job(job).spec.trainer is not None
    assert job["spec"]["trainer"]["source"]["configMap"]["name"] == code["metadata"]["name"]
    assert job["spec"]["trainer"]["module"] in code["data"]
    [container] = pod["spec"]["containers"]
    assert container["args"][1:] == ["team-a", job["metadata"]["name"], "33"]
    operator = objects.one("Deployment")["spec"]["template"]["spec"]
    for field in ("serviceAccountName", "securityContext"):
        assert pod["spec"][field] == operator[field]
    left_out = helm("template", "blue", str(paths.CHART), "--set", "test.enabled=false").stdout
    assert "helm.sh/hook" not in left_out
