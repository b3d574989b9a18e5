"""What follows from the chart's alerts: the rule for kustomize, and the page."""

from pathlib import Path
from typing import Any

import yaml

import manifests
from testing import paths

SOURCE = paths.CHART / "files/alerts.yaml"
RULE_FILE = paths.ROOT / "manifests/components/alerts/prometheus_rule.yaml"
PAGE_FILE = paths.PAGES / "operate/alerts.md"

_HEAD = """
# Alerts

The Prometheus operator loads these alerts if the chart has
`metrics.prometheusRule.enabled=true`, or if your kustomization has the component
`manifests/components/alerts`. They use the [metrics](metrics.md) of the operator alone.
"""


def files() -> dict[Path, str]:
    """Return the rule and the page."""
    header = manifests.header("the chart's files/alerts.yaml")
    groups = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "tfparallel-operator"},
        "spec": groups,
    }
    return {
        RULE_FILE: f"# {header}\n" + yaml.safe_dump(rule, sort_keys=False, width=100),
        PAGE_FILE: f"<!-- {header} -->\n{_HEAD}{''.join(map(_part, groups['groups'][0]['rules']))}",
    }


def _part(alert: dict[str, Any]) -> str:
    """Return when an alert fires, and what to do."""
    wait = f" for {alert['for']}" if "for" in alert else ""
    return f"""
## {alert["alert"]}

Severity {alert["labels"]["severity"]}. It fires if this holds{wait}:

```promql
{alert["expr"]}
```

{alert["annotations"]["description"]}
"""
