"""The Grafana dashboard of the operator's metrics, from a list of panels."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testing import paths

FILES = (
    paths.CHART / "files/dashboard.json",
    paths.ROOT / "manifests/components/dashboard/tfparallel.json",
)
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8
SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True)
class Panel:
    """A panel: its title, what it asks Prometheus, and how a line is called."""

    title: str
    expression: str
    legend: str = ""
    unit: str = "short"
    kind: str = "timeseries"


def _rate(metric: str, label: str) -> str:
    return f"sum by ({label}) (rate({metric}[$__rate_interval]))"


def _quantile(metric: str, share: float) -> str:
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', 'le')})"


ROWS = {
    "Jobs": (
        Panel("Jobs by state", "sum by (state) (tfparallel_jobs)", "{{state}}"),
        Panel(
            "Jobs that ended",
            "sum by (state, reason) (increase(tfparallel_jobs_ended_total[1h]))",
            "{{state}} {{reason}}",
        ),
        Panel(
            "Restarts within an hour",
            "sum by (cause) (increase(tfparallel_job_restarts_total[1h]))",
            "{{cause}}",
        ),
        Panel("Startup, median", _quantile("tfparallel_job_startup_seconds", 0.5), unit="s"),
        Panel("Duration, median", _quantile("tfparallel_job_duration_seconds", 0.5), unit="s"),
        Panel(
            "Reports of progress by response",
            _rate("tfparallel_progress_reports_total", "code"),
            "{{code}}",
            "reqps",
        ),
    ),
    "Operator": (
        Panel("Acting operators", "sum(tfparallel_leader)", kind="stat"),
        Panel("Version", "tfparallel_operator_info", "{{version}}", kind="stat"),
        Panel("Jobs that wait for the operator", "sum(tfparallel_queue_depth)"),
        Panel("Longest wait", "max(tfparallel_queue_age_seconds)", unit="s"),
        Panel(
            "Delay of a status, 99 %", _quantile("tfparallel_status_delay_seconds", 0.99), unit="s"
        ),
        Panel(
            "Reconciles by outcome",
            _rate("tfparallel_reconcile_duration_seconds_count", "outcome"),
            "{{outcome}}",
            "ops",
        ),
    ),
    "API server and process": (
        Panel(
            "Requests by code", _rate("tfparallel_api_requests_total", "code"), "{{code}}", "reqps"
        ),
        Panel(
            "Response of the API server, 99 %",
            _quantile("tfparallel_api_request_duration_seconds", 0.99),
            unit="s",
        ),
        Panel(
            "Silence of watches",
            "max by (resource) (tfparallel_watch_age_seconds)",
            "{{resource}}",
            "s",
        ),
        Panel(
            "CPU",
            "rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) tfparallel_leader",
            "{{instance}}",
        ),
        Panel(
            "Memory",
            "process_resident_memory_bytes and on (instance) tfparallel_leader",
            "{{instance}}",
            "bytes",
        ),
    ),
}


def files() -> dict[Path, str]:
    """Return the dashboard as JSON, for the chart and for kustomize."""
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    document = {
        "title": "TFParallelJob",
        "uid": "tfparallel-operator",
        "tags": ["tfparallel"],
        "schemaVersion": 41,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_panels(), start=1)],
    }
    return dict.fromkeys(FILES, json.dumps(document, indent=2) + "\n")


def _panels() -> Iterator[dict[str, Any]]:
    y = 0
    for title, panels in ROWS.items():
        yield {"type": "row", "title": title, "gridPos": _place(0, y, COLUMNS, 1), "panels": []}
        y += 1
        for number, panel in enumerate(panels):
            line, column = divmod(number, COLUMNS // PANEL_WIDTH)
            at = _place(column * PANEL_WIDTH, y + line * PANEL_HEIGHT, PANEL_WIDTH, PANEL_HEIGHT)
            yield _panel(panel, at)
        y += -(-len(panels) * PANEL_WIDTH // COLUMNS) * PANEL_HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel, grid_position: dict[str, int]) -> dict[str, Any]:
    target = {
        "refId": "A",
        "datasource": SOURCE,
        "expr": panel.expression,
        "legendFormat": panel.legend or panel.title,
    }
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "stat" and panel.legend:
        options["textMode"] = "name"  # type: ignore[assignment]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": grid_position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        **({"options": options} if panel.kind == "stat" else {}),
        "targets": [target],
    }
