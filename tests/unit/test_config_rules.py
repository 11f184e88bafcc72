"""Rules between settings, and settings that follow from others."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pwgrid.common.errors import ConfigError
from pwgrid.settings import load as config
from pwgrid.settings.load import load
from pwgrid.settings.model import Settings, is_loopback


@pytest.fixture(autouse=True)
def _no_file_in_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "none.toml")


def faults(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(None, environ, {})
    return [str(violation) for violation in caught.value.violations]


@pytest.mark.parametrize(
    ("environ", "fault"),
    [
        (
            {"ADVERTISED_URL": "https://me:s3cret@grid.example/", "ADVERTISED_HOST": "other.example"},
            "advertised_host: 'other.example' (environment ADVERTISED_HOST): advertised_url names another host "
            "(grid.example, environment ADVERTISED_URL): make them agree, or leave one of them out",
        ),
        (
            {"REDIS_URL": "redis+cluster://:s3cret@a", "REDIS_KEY_PREFIX": "grid:"},
            "redis_key_prefix: 'grid:' (environment REDIS_KEY_PREFIX): must have a hash tag, as {pwgrid}: has, since "
            "redis_url (environment REDIS_URL) names a Redis Cluster, which would else spread the keys over its nodes",
        ),
        (
            {"HEARTBEAT_INTERVAL": "20"},
            "heartbeat_interval: 20.0 (environment HEARTBEAT_INTERVAL): "
            "3 x heartbeat_interval must be <= redis_key_ttl (30.0, default)",
        ),
        (
            {"REDIS_KEY_TTL": "14"},
            "redis_key_ttl: 14.0 (environment REDIS_KEY_TTL): "
            "3 x heartbeat_interval (5.0, default) must be <= redis_key_ttl",
        ),
        (
            {"REDIS_KEY_TTL": "60"},
            "redis_key_ttl: 60.0 (environment REDIS_KEY_TTL): "
            "redis_key_ttl must be < shutdown_command_ttl (60.0, default)",
        ),
        (
            {"REDIS_KEY_TTL": "301", "SHUTDOWN_COMMAND_TTL": "400"},
            "redis_key_ttl: 301.0 (environment REDIS_KEY_TTL): "
            "redis_key_ttl must be <= reaper_run_interval (300.0, default)",
        ),
        (
            {"STALE_THRESHOLD": "5"},
            "stale_threshold: 5.0 (environment STALE_THRESHOLD): "
            "heartbeat_interval (5.0, default) must be < stale_threshold",
        ),
        (
            {"STALE_THRESHOLD": "300", "REAPER_RUN_INTERVAL": "300"},
            "stale_threshold: 300.0 (environment STALE_THRESHOLD): "
            "stale_threshold must be < reaper_run_interval (300.0, environment REAPER_RUN_INTERVAL)",
        ),
        (
            {"REDIS_TIMEOUT": "50"},
            "redis_timeout: 50.0 (environment REDIS_TIMEOUT): redis_timeout must be < redis_key_ttl (30.0, default)",
        ),
        (
            {"MAX_WORKER_MEMORY_MIB": "100", "MAX_WORKER_MEMORY_HARD_MIB": "100"},
            "max_worker_memory_mib: 100 (environment MAX_WORKER_MEMORY_MIB): "
            "max_worker_memory_mib must be < max_worker_memory_hard_mib (100, environment MAX_WORKER_MEMORY_HARD_MIB)",
        ),
    ],
)
def test_a_broken_relation_names_both_sides_with_values_and_sources(environ: dict[str, str], fault: str) -> None:
    assert faults(environ) == [fault]


@pytest.mark.parametrize(
    "environ",
    [
        {"HEARTBEAT_INTERVAL": "10"},
        {"REDIS_KEY_TTL": "0.3", "HEARTBEAT_INTERVAL": "0.1", "REDIS_TIMEOUT": "0.05"},
        {"REDIS_KEY_TTL": "300", "SHUTDOWN_COMMAND_TTL": "301"},
        {"MAX_WORKER_MEMORY_MIB": "100"},
        {"MAX_WORKER_MEMORY_HARD_MIB": "100"},
    ],
)
def test_relations_hold_up_to_their_bounds_and_a_limit_that_is_off_is_in_none(environ: dict[str, str]) -> None:
    load(None, environ, {})


@given(
    *(st.floats(0.01, 1000).map(lambda seconds: round(seconds, 2)) for _ in range(5)),
)
def test_what_loads_keeps_to_all_relations(beat: float, ttl: float, command: float, stale: float, reap: float) -> None:
    environ = {
        "HEARTBEAT_INTERVAL": str(beat),
        "REDIS_KEY_TTL": str(ttl),
        "SHUTDOWN_COMMAND_TTL": str(command),
        "STALE_THRESHOLD": str(stale),
        "REAPER_RUN_INTERVAL": str(reap),
        "REDIS_TIMEOUT": "0.01",
    }
    try:
        load(None, environ, {})
        loaded = True
    except ConfigError:
        loaded = False
    good = round(ttl * 100) >= 3 * round(beat * 100) and ttl < command and beat < stale < reap and ttl <= reap
    assert loaded == good


def test_no_relation_is_applied_to_a_value_that_is_wrong_itself() -> None:
    (line,) = faults({"REDIS_KEY_TTL": "x", "SHUTDOWN_COMMAND_TTL": "60"})
    assert line.startswith("redis_key_ttl: 'x'")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_a_loopback_listener_needs_no_token(host: str) -> None:
    assert is_loopback(host)
    assert load(None, {"PWGRID_HOST": host}, {}).settings.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "grid.example", "localhost.example"])
def test_a_public_listener_needs_a_token_or_somebody_who_means_it(host: str) -> None:
    assert faults({"PWGRID_HOST": host}) == [
        f"host: '{host}' (environment PWGRID_HOST): a listener that other hosts can reach needs a token: "
        "set PWGRID_TOKEN, make one with pwgrid token create, "
        "or say with ALLOW_PUBLIC=true or --allow-public that everyone may use it"
    ]
    assert load(None, {"PWGRID_HOST": host, "PWGRID_TOKEN": "abc"}, {}).settings.host == host
    assert load(None, {"PWGRID_HOST": host}, {"allow_public": True}).settings.host == host


def test_at_least_one_pool_has_a_worker() -> None:
    assert faults({"CHROMIUM_WORKERS": "0"}) == [
        "chromium_workers: 0 (environment CHROMIUM_WORKERS): "
        "chromium_workers, firefox_workers, webkit_workers: one of them must be at least 1"
    ]


def test_the_only_pool_with_workers_is_the_default_one() -> None:
    loaded = load(None, {"CHROMIUM_WORKERS": "0", "FIREFOX_WORKERS": "1"}, {})
    assert loaded.settings.default_browser_type == "firefox"
    assert loaded.sources["default_browser_type"] == "default, the only pool with workers"


def test_with_several_pools_the_default_stays() -> None:
    environ = {"CHROMIUM_WORKERS": "0", "FIREFOX_WORKERS": "1", "WEBKIT_WORKERS": "1"}
    assert load(None, environ, {}).settings.default_browser_type == "chromium"


def test_asking_for_an_empty_default_pool_is_refused() -> None:
    assert faults({"DEFAULT_BROWSER_TYPE": "webkit"}) == [
        "default_browser_type: 'webkit' (environment DEFAULT_BROWSER_TYPE): "
        "webkit_workers must be at least 1 then (0, default)"
    ]


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({"REDIS_HOST": "db"}, "redis://db:6379/0"),
        ({"REDIS_HOST": "::1", "REDIS_PORT": "7000"}, "redis://[::1]:7000/0"),
        ({"REDIS_HOST": "db", "REDIS_URL": "redis://other/1"}, "redis://other/1"),
        ({"REDIS_PORT": "7000"}, ""),
    ],
)
def test_a_redis_host_stands_for_a_url_where_there_is_none(environ: dict[str, str], url: str) -> None:
    loaded = load(None, environ, {})
    assert loaded.settings.redis_url.get_secret_value() == url
    if "REDIS_URL" not in environ and url:
        assert loaded.sources["redis_url"] == "redis_host, environment REDIS_HOST"


def test_settings_tell_workers_and_executables_by_browser_type() -> None:
    settings = Settings(webkit_workers=3, chromium_executable="/c", firefox_executable="/f", webkit_executable="/w")
    assert settings.workers_wanted() == {"chromium": 2, "firefox": 0, "webkit": 3}
    assert [settings.executable(browser_type) for browser_type in settings.workers_wanted()] == ["/c", "/f", "/w"]


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({}, ""),
        ({"ADVERTISED_HOST": "10.0.0.1"}, ""),
        ({"REDIS_URL": "redis://redis"}, ""),
        ({"REDIS_URL": "redis://redis", "ADVERTISED_HOST": "10.0.0.1", "PWGRID_PORT": "9000"}, "10.0.0.1:9000"),
        ({"REDIS_HOST": "redis", "ADVERTISED_HOST": "fd00::1"}, "[fd00::1]:8080"),
    ],
)
def test_a_host_has_a_name_for_others_where_it_has_an_address_for_them_and_a_redis_of_all(
    environ: dict[str, str], name: str
) -> None:
    assert load(None, environ, {}).settings.host_name() == name


def test_clients_may_come_by_another_address_than_other_hosts() -> None:
    environ = {"ADVERTISED_URL": "https://grid.example/", "ADVERTISED_HOST": "10.0.0.1", "REDIS_HOST": "redis"}
    settings = load(None, environ, {}).settings
    assert (settings.base_url(), settings.host_name()) == ("wss://grid.example", "10.0.0.1:8080")
