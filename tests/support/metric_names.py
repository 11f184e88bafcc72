"""Which metrics the shipped alerts and the dashboard ask for, with the labels that they name."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "config/prometheus-alerts.yml"
DASHBOARD = ROOT / "config/grafana-dashboard.json"
_METRIC = re.compile(r"\b(pwgrid_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=|!=|=~|!~)\"")
OF_PROMETHEUS = {"instance", "job", "le"}


def asked_for(text: str) -> Iterator[tuple[str, set[str]]]:
    """Each metric in a query, and the labels that it is selected by."""
    for name, labels in _METRIC.findall(text):
        yield name, set(_LABEL.findall(labels)) - OF_PROMETHEUS


def panels() -> list[dict[str, Any]]:
    """The dashboard's panels that show something."""
    found = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> list[str]:
    """What the dashboard asks for."""
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def all_names() -> set[str]:
    """Of all metrics that an alert or the dashboard asks for."""
    rules = re.sub("#.*|description:.*|summary:.*", "", ALERTS.read_text())
    return {name for text in (rules, *queries()) for name, _ in asked_for(text)}
