"""The shipped alerts and dashboard: promtool's word on the rules, and what the dashboard's schema allows."""

import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pwgrid.proxy.api import metrics
from tests.support.metric_names import ALERTS, DASHBOARD, ROOT, asked_for, queries
from tools import promtool as fetch_promtool

PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=Path(sys.executable).parent)
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool: `python tools/promtool.py` gets it from Debian's package prometheus"
)

LABELS = {
    **{each.shown: set(each.labels) for each in metrics.ALL if each.kind != "histogram"},
    **{
        f"{each.name}_{what}": set(each.labels)
        for each in metrics.ALL
        if each.kind == "histogram"
        for what in ("bucket", "sum", "count")
    },
}
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_promtool_that_is_half_copied_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def extracted(_command: list[str], directory: str) -> None:
        (Path(directory) / "prometheus_1.deb").touch()

    def interrupted(_source: Path, copy: Path) -> None:
        copy.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "which", lambda name: None if name == "promtool" else name)
    monkeypatch.setattr(fetch_promtool, "run", extracted)
    monkeypatch.setattr(shutil, "copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_promtool.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_promtool
def test_promtool_takes_the_rules_and_their_unit_tests_pass() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))
    assert "SUCCESS" in promtool("test", "rules", str(ROOT / "tests/prometheus/alerts.yml"))


def test_every_alert_has_a_unit_test_that_fires_and_one_that_does_not() -> None:
    tested = (ROOT / "tests/prometheus/alerts.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    assert {"PwgridCapacityGone", "PwgridQueueGrows", "PwgridEarlyDeaths", "PwgridLeakSuspected"} <= alerts
    for alert in alerts:
        assert re.search(rf"alertname: {alert}, .*exp_alerts: \[\]", tested), alert
        assert re.search(rf"alertname: {alert}\n.*\n\s+exp_alerts:\n\s+- exp_labels", tested), alert


def test_alerts_and_dashboard_ask_for_metrics_and_labels_that_there_are() -> None:
    rules = re.sub("#.*|description:.*|summary:.*", "", ALERTS.read_text())
    for text in (rules, *queries()):
        for name, labels in asked_for(text):
            assert labels <= LABELS[name], (name, labels)
            grouped = {each for found in re.findall(r"by \(([^)]*)\)", text) for each in found.split(", ")}
            assert grouped - {"instance", "le"} <= set().union(*(LABELS[each] for each, _ in asked_for(text))), text


@needs_promtool
def test_the_dashboard_s_queries_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{place}", "expr": query.replace("$__rate_interval", "5m")}
        for place, query in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"  # JSON is YAML, too
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


# The classic JSON model of Grafana (grafana.com/docs, "Dashboard JSON model"), as far as this dashboard uses it.
# Whatever else is in the file is a mistake: Grafana ignores in silence what it does not know.


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _DataSource(_Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class _Target(_Strict):
    ref_id: str = Field(pattern="^[A-Z]$")
    datasource: _DataSource
    expr: str = Field(min_length=1)
    legend_format: str
    instant: bool = False
    range: bool = True


class _Place(_Strict):
    x: int = Field(ge=0, le=23)
    y: int = Field(ge=0)
    w: int = Field(ge=1, le=24)
    h: int = Field(ge=1)


class _Step(_Strict):
    color: str
    value: float | None


class _Thresholds(_Strict):
    mode: Literal["absolute", "percentage"]
    steps: list[_Step]


class _Mapping(_Strict):
    type: Literal["value"]
    options: dict[str, dict[str, str | int]]


class _Stacking(_Strict):
    mode: Literal["none", "normal", "percent"]
    group: str


class _Custom(_Strict):
    line_width: int = Field(ge=0, le=10)
    fill_opacity: int = Field(ge=0, le=100)
    show_points: Literal["auto", "never", "always"]
    stacking: _Stacking


class _Defaults(_Strict):
    unit: Literal["short", "s", "ops", "reqps", "bytes", "percentunit"]
    min: float | None = None
    custom: _Custom | None = None
    mappings: list[_Mapping] = []
    thresholds: _Thresholds | None = None


class _FieldConfig(_Strict):
    defaults: _Defaults
    overrides: list[Any] = Field(max_length=0)


class _Panel(_Strict):
    id: int
    type: Literal["timeseries", "stat"]
    title: str = Field(min_length=1)
    description: str
    datasource: _DataSource
    grid_pos: _Place
    targets: list[_Target] = Field(min_length=1)
    field_config: _FieldConfig
    options: dict[str, Any]


class _Row(_Strict):
    id: int
    type: Literal["row"]
    title: str
    collapsed: Literal[False]
    grid_pos: _Place
    panels: list[Any] = Field(max_length=0)


class _Query(_Strict):
    query: str
    ref_id: str


class _Variable(_Strict):
    name: str
    label: str
    type: Literal["datasource", "query"]
    query: str | _Query
    datasource: _DataSource | None = None
    definition: str = ""
    refresh: Literal[0, 1, 2]
    include_all: bool
    all_value: str | None = None
    multi: bool
    sort: int = Field(0, ge=0, le=8)
    current: dict[str, str]
    options: list[Any]
    hide: Literal[0, 1, 2]


class _Variables(_Strict):
    list: list[_Variable]


class _Dashboard(_Strict):
    title: str
    uid: str = Field(pattern="^[a-zA-Z0-9_-]{1,40}$")
    description: str
    tags: list[str]
    schema_version: int = Field(ge=36)
    version: int
    editable: bool
    graph_tooltip: Literal[0, 1, 2]
    refresh: str
    timezone: str
    time: dict[Literal["from", "to"], str]
    templating: _Variables
    annotations: dict[Literal["list"], list[Any]]
    links: list[Any]
    panels: list[_Row | _Panel]


def test_the_dashboard_is_of_grafana_s_schema() -> None:
    board = _Dashboard.model_validate(BOARD)
    assert len({panel.id for panel in board.panels}) == len(board.panels)
    for panel in board.panels:
        assert panel.grid_pos.x + panel.grid_pos.w <= 24
        if isinstance(panel, _Panel):
            assert len({target.ref_id for target in panel.targets}) == len(panel.targets)
    variables = {each.name for each in board.templating.list}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(BOARD["panels"]))) <= variables | {"__rate_interval"}


def test_no_panel_of_the_dashboard_covers_another_one() -> None:
    for one, other in itertools.combinations((_Place(**panel["gridPos"]) for panel in BOARD["panels"]), 2):
        beside = one.x + one.w <= other.x or other.x + other.w <= one.x
        assert beside or one.y + one.h <= other.y or other.y + other.h <= one.y, (one, other)


def test_every_metric_is_on_the_dashboard_or_known_to_be_left_out() -> None:
    shown = {name for query in queries() for name, _ in asked_for(query)}
    left_out = {each.name for each in metrics.ALL if not any(name.startswith(each.name) for name in shown)}
    of_workers = {each.name for each in metrics.ONLY_BY_WORKER}
    of_process = {each.name for each in metrics.PROCESS} - {
        "pwgrid_proxy_process_cpu_seconds",
        "pwgrid_proxy_process_resident_memory_bytes",
    }
    assert left_out == of_workers | of_process | {
        "pwgrid_lifetime_sessions",
        "pwgrid_own_browsers",
        "pwgrid_browsers_lowered",
        "pwgrid_browser_launches",
        "pwgrid_kept_sessions",
        "pwgrid_upgrades_options_ignored",
        "pwgrid_upgrades_forwarded",
        "pwgrid_hosts",
        "pwgrid_build_info",
        "pwgrid_pool_info",
        "pwgrid_master_start_time_seconds",
    }
