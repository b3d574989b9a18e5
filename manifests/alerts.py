"""What follows from the chart's alerts: the rule for kustomize, and the page."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "charts/tfparallel-operator/files/alerts.yaml"
RULE_FILE = ROOT / "manifests/components/alerts/prometheus_rule.yaml"
PAGE_FILE = ROOT / "docs/operate/alerts.md"

_LABELS = {
    "app.kubernetes.io/name": "tfparallel-operator",
    "app.kubernetes.io/component": "operator",
    "app.kubernetes.io/part-of": "tfparallel",
}


def rule(header: str) -> str:
    """Return the PrometheusRule of the kustomize component."""
    manifest = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tfparallel-operator", "labels": _LABELS},
        "spec": _groups(),
    }
    return f"# {header}\n" + yaml.safe_dump(manifest, sort_keys=False, width=100)


def page(header: str) -> str:
    """Return the page of the alerts: when each fires, and what to do."""
    lines = [
        f"<!-- {header} -->",
        "",
        "# Alerts",
        "",
        "The Prometheus operator loads these alerts if the chart has",
        "`metrics.prometheusRule.enabled=true`, or if your kustomization has the component",
        "`manifests/components/alerts`. They use the [metrics](metrics.md) of the operator alone.",
    ]
    for alert in _groups()["groups"][0]["rules"]:
        wait = f" for {alert['for']}" if "for" in alert else ""
        lines += [
            "",
            f"## {alert['alert']}",
            "",
            f"Severity {alert['labels']['severity']}. It fires",
        ]
        lines[-1] += f" if this holds{wait}:"
        lines += ["", "```promql", alert["expr"], "```", "", alert["annotations"]["description"]]
    return "\n".join(lines) + "\n"


def _groups() -> dict[str, Any]:
    groups: dict[str, Any] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    return groups
