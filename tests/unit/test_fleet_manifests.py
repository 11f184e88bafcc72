"""config/kubernetes.yaml and config/nomad.hcl: what the engines' own schemas say, and what must fit to the grid."""

import re
from pathlib import Path
from typing import Any, Final

import hcl2
import kubernetes_validate
import pytest
import yaml
from hcl2.utils import SerializationOptions

from pwgrid.proxy.api.app import create_app
from pwgrid.proxy.policy.access import Access
from pwgrid.settings.load import load
from pwgrid.settings.model import SETTINGS
from tests.support.grid import ROOT

CONFIG: Final = ROOT / "config"
MANIFESTS: Final[list[dict[str, Any]]] = [*yaml.safe_load_all((CONFIG / "kubernetes.yaml").read_text())]
BY_KIND: Final = {each["kind"]: each for each in MANIFESTS}
POD: Final = BY_KIND["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
ENVIRONMENT: Final = {each["name"]: each for each in CONTAINER["env"]}
with (CONFIG / "nomad.hcl").open() as _file:
    (JOB,) = hcl2.load(
        _file,
        serialization_options=SerializationOptions(
            with_comments=False, explicit_blocks=False, strip_string_quotes=True
        ),
    )["job"]
(GROUP,) = (each["pwgrid"] for each in JOB["pwgrid"]["group"])
(TASK,) = GROUP["task"]
VARIABLES: Final = {name for setting in SETTINGS.values() for name in setting.environments}


@pytest.mark.parametrize("version", ["1.30", "1.37"])
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: str(each["kind"]))
def test_kubernetes_takes_each_manifest(manifest: dict[str, Any], version: str) -> None:
    """1.30 is the oldest that has `sleep` in a hook."""
    kubernetes_validate.validate(manifest, version, strict=True)
    broken = {**manifest, "spc": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_what_selects_pods_finds_those_of_the_deployment() -> None:
    labels = BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    (rule,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == labels
    assert (
        BY_KIND["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == BY_KIND["Deployment"]["metadata"]["name"]
    )


def test_its_sessions_end_before_the_pod_is_killed() -> None:
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + float(ENVIRONMENT["DRAIN_TIMEOUT"]["value"]) + 30 <= POD["terminationGracePeriodSeconds"]


def test_its_file_and_variables_are_settings(tmp_path: Path) -> None:
    assert {*ENVIRONMENT} <= VARIABLES
    file = tmp_path / "grid.toml"
    file.write_text(BY_KIND["ConfigMap"]["data"]["grid.toml"])
    plain = {name: each["value"] for name, each in ENVIRONMENT.items() if "value" in each}
    assert load(file, plain, {}).settings.chromium_workers == 4
    mounted = next(each["mountPath"] for each in CONTAINER["volumeMounts"] if each["name"] == "config")
    assert CONTAINER["args"][-1] == f"{mounted}/{file.name}"


def test_what_it_probes_is_a_route_of_the_grid() -> None:
    routes = {*create_app(None, Access()).openapi()["paths"]}  # type: ignore[arg-type] # no route is called
    probes = [CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "startup", "liveness")]
    checks = [check["path"] for service in GROUP["service"] for check in service["check"]]
    assert {*probes, *checks} <= routes


def test_it_scales_by_metrics_that_there_are() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    for metric in BY_KIND["HorizontalPodAutoscaler"]["spec"]["metrics"]:
        assert f"| `{metric['pods']['metric']['name']}` |" in page


def test_nomad_s_job_fits_to_the_grid() -> None:
    task = TASK["grid"]
    environment = task["env"][0]
    assert {*environment} <= VARIABLES
    assert _seconds(task["shutdown_delay"]) + float(environment["DRAIN_TIMEOUT"]) + 30 <= _seconds(task["kill_timeout"])
    (network,) = GROUP["network"]
    assert task["config"][0]["ports"] == [name for port in network["port"] for name in port]


def _seconds(value: str) -> int:
    found = re.fullmatch(r"(\d+)s", value)
    assert found
    return int(found[1])
