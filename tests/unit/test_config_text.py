"""The table of settings agrees with itself, with the shipped files and with what `config show` prints."""

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from pwgrid.cli.main import main
from pwgrid.common.errors import ConfigError
from pwgrid.settings import load as config
from pwgrid.settings.attribute_docstrings import attribute_docstrings
from pwgrid.settings.environment_variables import NO_SETTINGS, find_strays
from pwgrid.settings.generate_grid_toml import grid_toml
from pwgrid.settings.load import load
from pwgrid.settings.model import SECTIONS, SETTINGS, Part, Settings
from pwgrid.settings.pools import PoolTable
from pwgrid.settings.show_with_sources import described, show

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "config"


@pytest.fixture(autouse=True)
def _no_file_in_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "none.toml")


def test_every_default_keeps_to_the_rules_of_its_setting() -> None:
    assert Settings.model_validate(dict(Settings()), strict=True) == Settings()


def test_every_number_has_bounds_and_every_setting_a_line_of_meaning() -> None:
    for setting in SETTINGS.values():
        assert (setting.bounds is not None) == (setting.kind in (int, float))
        assert re.fullmatch(r"[^\n]{5,110}\.", setting.meaning)
        assert setting.kind is not float or setting.unit == "seconds"


def test_a_command_reads_what_settings_mean_only_for_its_help() -> None:
    attribute_docstrings.cache_clear()
    assert CliRunner().invoke(main, ["config", "check"]).exit_code == 0
    assert attribute_docstrings.cache_info().currsize == 0
    assert "Address to listen on. [127.0.0.1]" in CliRunner().invoke(main, ["config", "check", "--help"]).output


def test_sections_are_all_used_and_each_in_one_piece() -> None:
    assert [section for section, _ in itertools.groupby(SETTINGS.values(), lambda setting: setting.section)] == [
        *SECTIONS,
        "pools",
    ]


def test_no_two_settings_share_an_environment_name_or_a_flag() -> None:
    names = [name for setting in SETTINGS.values() for name in setting.environments]
    assert len({*names}) == len(names)
    assert len({setting.flag for setting in SETTINGS.values()}) == len(SETTINGS)


def test_the_shipped_file_is_the_one_that_the_model_stands_for() -> None:
    assert (SHIPPED / "grid.toml").read_text() == grid_toml(), (
        "run: python -m pwgrid.settings.generate_grid_toml config/grid.toml"
    )


def test_a_list_in_the_environment_is_words_as_a_shell_splits_them() -> None:
    loaded = load(None, {"CHROMIUM_ARGS": "--lang=de '--user-agent=a b'"}, {})
    assert loaded.settings.chromium_args == ("--lang=de", "--user-agent=a b")


def test_the_shipped_toml_file_changes_nothing_as_it_is_and_names_all_defaults_without_its_hashes(
    tmp_path: Path,
) -> None:
    as_shipped = load(SHIPPED / "grid.toml", {}, {})
    assert set(as_shipped.sources.values()) == {"default"}
    bare = tmp_path / "bare.toml"
    bare.write_text(re.sub(r"(?m)^#(?=[a-z])", "", (SHIPPED / "grid.toml").read_text()))
    loaded = load(bare, {}, {})
    assert loaded.settings == Settings()
    assert {source for name, source in loaded.sources.items() if name != "pools"} == {str(bare)}


def test_the_example_of_a_pool_in_the_shipped_toml_file_is_one_without_its_hashes(tmp_path: Path) -> None:
    file = tmp_path / "example.toml"
    example = (SHIPPED / "grid.toml").read_text().partition("An example:\n")[2]
    file.write_text(re.sub(r"(?m)^#", "", example))
    (pool,) = load(file, {}, {}).settings.pools
    assert (pool.name, pool.workers, pool.proxy and pool.proxy.server) == ("appa", 3, "http://proxy:3128")
    assert set(PoolTable.model_fields) == {*pool.model_fields_set, "channel"}


def test_the_table_for_people_has_value_unit_and_source_and_hides_secrets() -> None:
    loaded = load(None, {"REDIS_URL": "redis://me:hunter2@h/0", "PWGRID_TOKEN": "hunter2"}, {"drain_timeout": 7})
    rows = {line.split()[0]: line.split()[1:] for line in show(described(loaded.settings, loaded.sources)).splitlines()}
    assert rows["SETTING"] == ["VALUE", "UNIT", "SOURCE"]
    assert rows["drain_timeout"] == ["7.0", "seconds", "--drain-timeout"]
    assert rows["redis_url"] == ["redis://me:***@h/0", "environment", "REDIS_URL"]
    assert rows["token"] == ["***", "environment", "PWGRID_TOKEN"]
    assert rows["chromium_executable"] == ['""', "default"]
    assert set(rows) == {"SETTING", *SETTINGS}


def test_the_table_for_machines_has_the_same_and_hides_secrets() -> None:
    loaded = load(None, {"REDIS_URL": "redis://:hunter2@h/0", "PWGRID_TOKEN": "hunter2"}, {"chromium_args": ["--a"]})
    table = json.loads(json.dumps(described(loaded.settings, loaded.sources)))
    assert table["token"] == {"value": "***", "unit": "", "source": "environment PWGRID_TOKEN"}
    assert table["redis_url"]["value"] == "redis://:***@h/0"
    assert table["chromium_args"]["value"] == ["--a"]
    assert table["redis_key_ttl"] == {"value": 30.0, "unit": "seconds", "source": "default"}
    assert set(table) == set(SETTINGS)


def test_the_flags_of_commands_are_settings_of_the_model() -> None:
    flags = ["--port", "0", "--chromium", "3", "--allow-public", "--log-level", "DEBUG", "--token", "hunter2"]
    done = CliRunner().invoke(main, ["config", "show", "--json", *flags], env={"PWGRID_CONFIG": None})
    table = json.loads(done.output)
    given = {name: row["value"] for name, row in table.items() if row["source"].startswith("--")}
    assert given == {
        "port": 0,
        "chromium_workers": 3,
        "allow_public": True,
        "log_level": "debug",
        "token": "***",
    }
    said = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())
    assert "--port N Port to listen on; 0 picks a free one. 0 to 65535. [8080]" in said


def test_every_setting_says_whom_it_concerns() -> None:
    for name, setting in SETTINGS.items():
        assert setting.concerns, name
        assert set(setting.concerns) <= set(get_args(Part)), name
        assert len(setting.concerns) == 1 or {"fixed", "pool", "master"}.isdisjoint(setting.concerns), name


def test_a_command_to_a_running_grid_loads_no_model() -> None:
    code = "import sys, pwgrid.cli.main, pwgrid.cli.status, pwgrid.cli.drain; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"pydantic", "redis", "asyncio", "structlog"}.isdisjoint(done.stdout.split())


def test_every_setting_has_a_name_with_our_prefix_which_beats_the_one_without() -> None:
    for setting in SETTINGS.values():
        assert setting.environments[0] == f"PWGRID_{setting.name.upper()}"
        assert setting.environment in setting.environments
    loaded = load(None, {"DRAIN_TIMEOUT": "7", "PWGRID_DRAIN_TIMEOUT": "8", "MAX_QUEUE": "9"}, {})
    assert (loaded.settings.drain_timeout, loaded.sources["drain_timeout"]) == (8, "environment PWGRID_DRAIN_TIMEOUT")
    assert (loaded.settings.max_queue, loaded.sources["max_queue"]) == (9, "environment MAX_QUEUE")


def test_another_hub_s_name_of_a_setting_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text("[lifecycle]\nworker_drain_timeout_seconds = 9\n")
    assert load(file, {}, {}).settings.drain_timeout == 9
    loaded = load(file, {"WORKER_DRAIN_TIMEOUT_SECONDS": "10"}, {})
    assert loaded.settings.drain_timeout == 10
    assert loaded.sources["drain_timeout"] == "environment WORKER_DRAIN_TIMEOUT_SECONDS"
    loaded = load(file, {"WORKER_DRAIN_TIMEOUT_SECONDS": "10", "DRAIN_TIMEOUT": "11"}, {})
    assert loaded.settings.drain_timeout == 11
    file.write_text("[lifecycle]\nworker_drain_timeout_seconds = 9\ndrain_timeout = 8\n")
    with pytest.raises(ConfigError, match="is another name of drain_timeout, which is there, too"):
        load(file, {}, {})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MAX_CONCURENT_SESSIONS", "; did you mean MAX_CONCURRENT_SESSIONS?"),
        ("PWGRID_MAX_CONCURENT_SESSIONS", "; did you mean PWGRID_MAX_CONCURRENT_SESSIONS?"),
        ("CHROMIUM_WORKER", "; did you mean CHROMIUM_WORKERS?"),
        ("DRAIN_TIME_OUT", "; did you mean DRAIN_TIMEOUT?"),
        ("PWGRID_XYZZY", ""),
        ("PWGRID_SLOTS", "; did you mean PWGRID_MAX_CONCURRENT_SESSIONS?"),
        ("PWGRID_CHROMIUM", "; did you mean PWGRID_CHROMIUM_WORKERS?"),
        ("pwgrid_port", "; did you mean PWGRID_PORT?"),
    ],
)
def test_a_variable_that_should_be_a_setting_is_found(name: str, hint: str) -> None:
    (stray,) = load(None, {name: "1"}, {}).strays
    assert str(stray) == f"{name}: (environment): is no setting{hint}"
    done = CliRunner().invoke(main, ["config", "check"], env={name: "1", "PWGRID_CONFIG": None})
    assert done.exit_code == 2
    assert str(stray) in done.output


def test_variables_of_others_are_left_alone() -> None:
    others = "PATH HOME LOG_DIR REDIS_SENTINELS REDIS_DB HOST PORT TOKEN HEADLESS_MODE WORKERS CI GITHUB_TOKEN LOGLEVEL"
    assert load(None, dict.fromkeys(others.split(), "1"), {}).strays == ()


def test_the_variables_of_ours_that_are_no_settings_are_those_of_the_code() -> None:
    code = {path for pattern in ("*.py", "*.cjs") for path in (ROOT / "grid/pwgrid").rglob(pattern)}
    code.remove(ROOT / "grid/pwgrid/settings/environment_variables.py")
    in_code, in_docs = named_in(code), named_in({*(ROOT / "docs").glob("*.md"), ROOT / "README.md"})
    assert in_code >= NO_SETTINGS
    assert [*find_strays(in_code | in_docs - {"PWGRID_WORKERS"})] == []  # which docs have as an example of a mistake
    assert NO_SETTINGS.isdisjoint(each for setting in SETTINGS.values() for each in setting.environments)


def named_in(files: Iterable[Path]) -> set[str]:
    """All names with our prefix."""
    return {name for path in files for name in re.findall(r"\bPWGRID_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8"))}


def test_config_show_says_whose_settings_it_shows(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["config", "show"], env={"PWGRID_CONFIG": None}).output.splitlines()[0]
    there = f"no file ({tmp_path}/none.toml is not there), this environment, these flags"
    assert shown == f"# settings of a grid that would be started here now: {there}"


def test_the_drain_timeout_is_also_understood_by_the_name_that_other_hubs_give_it() -> None:
    loaded = load(None, {"WORKER_DRAIN_TIMEOUT_SECONDS": "7"}, {})
    assert loaded.settings.drain_timeout == 7.0
    assert load(None, {"WORKER_DRAIN_TIMEOUT_SECONDS": "7", "DRAIN_TIMEOUT": "8"}, {}).settings.drain_timeout == 8.0
