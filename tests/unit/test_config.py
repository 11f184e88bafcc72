"""Where settings come from, what is refused, and how a refusal reads."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pwgrid.common.errors import ConfigError
from pwgrid.settings import load as config
from pwgrid.settings.load import load, log_format_of
from pwgrid.settings.model import SETTINGS, Settings
from pwgrid.settings.value_types import Secret


@pytest.fixture(autouse=True)
def _no_file_in_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "etc" / "grid.toml")


TRUSTED_RULE = "must be addresses like 10.0.0.5, networks like 10.0.0.0/8, or unix, with a blank between two"


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "grid.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults(
    file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, flags or {})
    return [str(violation) for violation in caught.value.violations]


def test_without_any_source_all_settings_have_their_defaults() -> None:
    loaded = load(None, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources) == set(SETTINGS)
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.config_file is None


def test_environment_beats_file_and_flags_beat_both(tmp_path: Path) -> None:
    path = written(tmp_path, "[workers]\nchromium_workers = 3\nfirefox_workers = 3\nwebkit_workers = 3\n")
    environ = {"FIREFOX_WORKERS": "4", "WEBKIT_WORKERS": "4"}
    loaded = load(path, environ, {"webkit_workers": 5, "host": None, "allowed_origins": ()})
    assert loaded.settings.workers_wanted() == {"chromium": 3, "firefox": 4, "webkit": 5}
    assert loaded.sources["chromium_workers"] == str(path)
    assert loaded.sources["firefox_workers"] == "environment FIREFOX_WORKERS"
    assert loaded.sources["webkit_workers"] == "--webkit"
    assert loaded.sources["host"] == loaded.sources["allowed_origins"] == "default"


def test_a_good_value_from_a_stronger_source_does_not_hide_a_bad_one_and_is_in_force_for_the_rules() -> None:
    assert faults(environ={"HEARTBEAT_INTERVAL": "soon"}, flags={"heartbeat_interval": 20.0}) == [
        "heartbeat_interval: 'soon' (environment HEARTBEAT_INTERVAL): must be a number, 0.01 to 2000000",
        "heartbeat_interval: 20.0 (--heartbeat-interval): "
        "3 x heartbeat_interval must be <= redis_key_ttl (30.0, default)",
    ]


def test_a_value_is_the_same_whatever_source_it_comes_from(tmp_path: Path) -> None:
    path = written(tmp_path, "[lifecycle]\ndrain_timeout = 5\nmax_worker_age = 0\n[browsers]\nchromium_args = ['-a']\n")
    environ = {"DRAIN_TIMEOUT": "5", "MAX_WORKER_AGE": "0", "CHROMIUM_ARGS": "-a"}
    flags = {"drain_timeout": 5, "max_worker_age": 0, "chromium_args": ["-a"]}
    plain = [
        repr(load(*sources).settings.plain()) for sources in ((path, {}, {}), (None, environ, {}), (None, {}, flags))
    ]
    assert plain == [plain[0]] * 3  # a master tells by it whether a child has the settings that it has itself


def test_an_empty_environment_variable_is_not_set(tmp_path: Path) -> None:
    path = written(tmp_path, "[redis]\nredis_key_prefix = 'a:'\n")
    loaded = load(path, {"REDIS_KEY_PREFIX": "", "PWGRID_PORT": " ", "PWGRID_CONFIG": ""}, {})
    assert (loaded.settings.redis_key_prefix, loaded.settings.port) == ("a:", 8080)


def test_what_kubernetes_says_of_a_service_is_no_setting() -> None:
    """It sets this in every pod of the namespace in which there is a Service called redis or pwgrid."""
    links = {"REDIS_PORT": "tcp://10.0.0.1:6379", "PWGRID_PORT": "udp://10.0.0.1:8080"}
    found = load(None, {**links, "REDIS_HOST": "redis"}, {})
    assert (found.settings.redis_port, found.settings.port) == (6379, 8080)
    assert found.sources["redis_port"] == found.sources["port"] == "default"
    with pytest.raises(ConfigError):
        load(None, {"REDIS_PORT": "http://redis"}, {})


def test_the_file_is_the_given_one_else_that_of_the_environment_else_the_default_one(tmp_path: Path) -> None:
    for name, port in (("given", 1), ("named", 2), ("etc", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "grid.toml").write_text(f"[listener]\nport = {port}\n")
    environ = {"PWGRID_CONFIG": str(tmp_path / "named" / "grid.toml")}
    given_file = tmp_path / "given" / "grid.toml"
    assert load(given_file, environ, {}).settings.port == 1
    assert load(given_file, environ, {}).config_file == given_file
    assert load(None, environ, {}).settings.port == 2
    assert load(None, {}, {}).settings.port == 3


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("PWGRID_HOST", "host"),
        ("PWGRID_PORT", "port"),
        ("PWGRID_TOKEN", "token"),
        ("PWGRID_RUNTIME_DIR", "runtime_dir"),
        ("REDIS_URL", "redis_url"),
        ("REDIS_HOST", "redis_host"),
        ("REDIS_PORT", "redis_port"),
        ("REDIS_KEY_TTL", "redis_key_ttl"),
        ("REDIS_RETRY_ATTEMPTS", "redis_retry_attempts"),
        ("REDIS_RETRY_DELAY", "redis_retry_delay"),
        ("REDIS_KEY_PREFIX", "redis_key_prefix"),
        ("HEARTBEAT_INTERVAL", "heartbeat_interval"),
        ("MAX_CONCURRENT_SESSIONS", "max_concurrent_sessions"),
        ("MAX_LIFETIME_SESSIONS", "max_lifetime_sessions"),
        ("WORKER_SELECT_TIMEOUT", "worker_select_timeout"),
        ("SHUTDOWN_COMMAND_TTL", "shutdown_command_ttl"),
        ("DRAIN_TIMEOUT", "drain_timeout"),
        ("REAPER_RUN_INTERVAL", "reaper_run_interval"),
        ("STALE_THRESHOLD", "stale_threshold"),
        ("DEFAULT_BROWSER_TYPE", "default_browser_type"),
        ("HEADLESS", "headless"),
        ("LOG_LEVEL", "log_level"),
        ("LOG_FORMAT", "log_format"),
    ],
)
def test_the_environment_names_are_those_that_are_promised(variable: str, name: str) -> None:
    assert SETTINGS[name].environment == variable


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", " 9000 ", 9000),
        ("headless", "No", False),
        ("allow_public", "1", True),
        ("drain_timeout", "5", 5.0),
        ("drain_timeout", "1e2", 100.0),
        ("drain_timeout", ".5", 0.5),
        ("log_level", "WARNING", "warning"),
        ("chromium_args", "--window-size=800,600 '--lang=a b'", ("--window-size=800,600", "--lang=a b")),
        ("allowed_origins", "https://a.example http://b.example:81", ("https://a.example", "http://b.example:81")),
        ("allowed_hosts", "grid *.example.org * ::1", ("grid", "*.example.org", "*", "::1")),
        ("port", "0", 0),
        ("max_worker_memory_mib", "0", 0),
    ],
)
def test_text_becomes_a_value_of_the_setting(name: str, text: str, value: object) -> None:
    loaded = load(None, {SETTINGS[name].environment: text}, {})
    assert getattr(loaded.settings, name) == value
    assert type(getattr(loaded.settings, name)) is type(value)
    assert load(None, {}, {name: text}).settings == loaded.settings


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("port", "1_0"),
        ("port", "٣"),
        ("port", "8080.0"),
        ("port", "9" * 5000),
        ("chromium_workers", "1001"),
        ("chromium_workers", "true"),
        ("headless", "maybe"),
        ("heartbeat_interval", "nan"),
        ("heartbeat_interval", "inf"),
        ("heartbeat_interval", "1e999"),
        ("heartbeat_interval", "0"),
        ("heartbeat_interval", "-5"),
        ("heartbeat_interval", "5s"),
        ("session_idle_timeout", "0.01"),
        ("drain_timeout", "2000001"),
        ("default_browser_type", "opera"),
        ("chromium_executable", "chromium"),
        ("chromium_args", "https://example.org"),
        ("chromium_args", "'"),
        ("allowed_origins", "https://a.example/path"),
        ("allowed_origins", "https://a.example,https://b.example"),
        ("allowed_hosts", "grid.example:8080"),
        ("allowed_hosts", "grid.*"),
        ("allowed_hosts", "http://grid.example"),
        ("host", "[::1]"),
        ("host", "127.0.0.1:80"[:9] + "/8"),
        ("token", "two words"),
        ("token", "a\nb"),
        ("redis_key_prefix", "\udcff"),
        ("runtime_dir", "/" + "x" * 41),
        ("redis_url", "http://localhost"),
        ("redis_url", "redis://"),
        ("redis_url", "redis://localhost:x/0"),
        ("redis_url", "redis://localhost:65536/0"),
        ("redis_url", "redis://localhost/zero"),
        ("redis_url", "redis://[::1/0"),
        ("redis_url", "unix://"),
    ],
)
def test_an_unfit_text_is_refused_with_its_name_and_source(name: str, text: str) -> None:
    variable = SETTINGS[name].environment
    lines = faults(environ={variable: text})
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: ")
    assert f"(environment {variable}): " in lines[0]
    assert len(lines[0]) < 300


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("port", "65536", "must be 0 to 65535"),
        ("port", "8080.0", "must be a whole number, 0 to 65535"),
        ("heartbeat_interval", "nan", "must be a number, 0.01 to 2000000"),
        ("session_idle_timeout", "0.01", "must be 0 (off) or 0.1 to 2000000"),
        ("max_worker_memory_mib", "15", "must be 0 (off) or 16 to 1073741824"),
        ("headless", "maybe", "must be true or false"),
        ("log_level", "WARN", "must be one of debug, info, warning, error, critical; did you mean warning?"),
        ("log_format", "xml", "must be one of text, json"),
        ("chromium_args", "'", "must be words as a shell splits them: no closing quotation"),
        ("chromium_args", "--ok bad", "must be command line switches, which begin with -"),
        ("host", "::1/64", "must be a host name or an address (IPv6 without brackets)"),
        ("advertised_host", "[::1]", "must be a host name or an address (IPv6 without brackets)"),
        ("trusted_proxies", "10.0.0.1,10.0.0.2", TRUSTED_RULE),
        ("trusted_proxies", "10.0.0.5/8", TRUSTED_RULE),
        ("trusted_proxies", "localhost", TRUSTED_RULE),
        ("firefox_executable", "firefox", "must be an absolute path"),
        ("redis_key_prefix", "a b", "must be visible ASCII characters without spaces"),
        ("redis_key_prefix", "\udcff", "must not contain control characters or broken UTF-8"),
        ("redis_url", "unix://", "must name a socket: unix:///path/to/redis.sock"),
    ],
)
def test_a_refusal_is_a_sentence_that_says_what_it_must_be(name: str, text: str, sentence: str) -> None:
    (line,) = faults(environ={SETTINGS[name].environment: text})
    assert line.endswith(f"): {sentence}")


def test_a_setting_in_the_environment_has_its_name_in_upper_case_and_nothing_else_counts() -> None:
    environ = {"headless": "maybe", "Log_Level": "maybe", "PORT": "maybe", "QUEUE_MAX": "maybe", "TOKEN": "x"}
    assert set(load(None, environ, {}).sources.values()) == {"default"}


@pytest.mark.parametrize(
    "url",
    [
        *("grid.example", "ftp://grid.example", "https://", "https://grid:0/", "https://grid/a b", "https://grid/ü"),
        *("https://grid/?token=s3cret", "https://grid/#a", "https://grid//a", "https://me:s3cret@grid/ü"),
    ],
)
def test_an_advertised_url_that_is_none_is_refused_without_its_password(url: str) -> None:
    (line,) = faults(environ={"ADVERTISED_URL": url})
    assert "): must be a URL like https://grid.example.org/grid, without what begins with ? or #, and with a" in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("url", "base", "client", "local"),
    [
        ("https://grid.example/", "wss://grid.example", "wss://grid.example", "http://[::1]:8080"),
        ("wss://me:pw@Grid:1/a/b/", "wss://me:pw@grid:1/a/b", "wss://me:pw@grid:1/a/b/", "http://[::1]:8080"),
        ("", "ws://[::1]:8080", "ws://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_the_grid_has_one_url_for_clients_and_one_for_this_host(url: str, base: str, client: str, local: str) -> None:
    settings = load(None, {"ADVERTISED_URL": url, "PWGRID_HOST": "::", "ALLOW_PUBLIC": "true"}, {}).settings
    assert (settings.base_url(), settings.client_url(), settings.local_url().origin) == (base, client, local)
    assert "pw" not in str(settings.advertised_url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "rediss://u:p@h:6380/3",
        "unix:///run/redis.sock?db=1",
        "redis://[::1]:1/0",
        "redis+sentinel://u:p@a:26379,b/main/0",
    ],
)
def test_redis_urls_of_every_form_are_taken(url: str) -> None:
    assert load(None, {"REDIS_URL": url}, {}).settings.redis_url.get_secret_value() == url


@pytest.mark.parametrize(
    "line",
    [
        "[listener]\nport = true",
        "[listener]\nport = 80.0",
        "[listener]\nport = '80'",
        "[listener]\nport = 0x" + "f" * 6000,
        "[listener]\nallow_public = 1",
        "[listener]\nhost = ''",
        '[listener]\nhost = "a\\u0000"',
        "[listener]\nallowed_origins = 'https://a.example'",
        "[listener]\nallowed_origins = [1]",
        "[listener]\nallowed_origins = ['']",
        "[lifecycle]\nheartbeat_interval = false",
        "[lifecycle]\nheartbeat_interval = nan",
        "[lifecycle]\nheartbeat_interval = -inf",
        "[lifecycle]\nheartbeat_interval = 1979-05-27",
        "[lifecycle]\nheartbeat_interval = 0x" + "f" * 6000,
        "[lifecycle]\nheartbeat_interval = {a = 1}",
        "[runtime]\nlog_level = 3",
    ],
)
def test_an_unfit_value_in_the_file_is_refused(tmp_path: Path, line: str) -> None:
    path = written(tmp_path, line)
    assert [f"({path}): must" in fault for fault in faults(path)] == [True]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[redsi]\n", "redsi: ({}): unknown section; did you mean redis?"),
        (
            "[redis]\nredis_key_tll = 1\n",
            "redis_key_tll in [redis]: ({}): unknown setting; did you mean redis_key_ttl?",
        ),
        ("[redis]\nzzz = 'secret'\n", "zzz in [redis]: ({}): unknown setting"),
        ("[workers]\nslots = 3\n", "slots in [workers]: ({}): unknown setting; did you mean max_concurrent_sessions?"),
        ("[redis]\nport = 1\n", "port in [redis]: ({}): belongs into the section [listener]"),
        ("port = 1\n", "port: ({}): belongs into the section [listener]"),
        ("redis = 1\n", "redis: ({}): must be a section: [redis]"),
        ("[[redis]]\n", "redis: ({}): must be a section: [redis]"),
        ('["\\n"]\n', "'\\n': ({}): unknown section"),
    ],
)
def test_what_the_file_has_too_much_is_named_with_a_hint(tmp_path: Path, text: str, fault: str) -> None:
    path = written(tmp_path, text)
    assert faults(path) == [fault.format(path)]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"port = \n", "is not TOML"),
        (b"[listener]\nport = 1\nport = 2\n", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"a = " + b"[" * 50_000, "is nested too deeply"),
        (b"a = " + b"1" * 50_000, "is not TOML"),
    ],
)
def test_a_broken_file_is_one_violation_and_breaks_no_rule_between_settings(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    lines = faults(written(tmp_path, content), {"PWGRID_HOST": "0.0.0.0", "PWGRID_PORT": "x"})
    assert [line.partition(":")[0] for line in lines] == ["config", "port"]
    assert reason in lines[0]


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    assert load(written(tmp_path, b"\xef\xbb\xbf[listener]\nport = 1\n"), {}, {}).settings.port == 1


def test_a_file_that_cannot_be_read_is_a_violation_that_names_who_asked_for_it(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert faults(missing) == [f"config: '{missing}' (--config): cannot be read: No such file or directory"]
    assert faults(environ={"PWGRID_CONFIG": str(tmp_path)}) == [
        f"config: '{tmp_path}' (environment PWGRID_CONFIG): cannot be read: Is a directory"
    ]


def test_a_default_file_that_may_not_be_looked_at_is_not_taken_for_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / ("x" * 300) / "grid.toml")
    assert faults() == [f"config: '{config.DEFAULT_FILE}' (the default place): cannot be read: File name too long"]


def test_all_violations_come_at_once_with_exit_code_2(tmp_path: Path) -> None:
    path = written(tmp_path, "[redis]\nredis_port = 0\nwhat = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(path, {"MAX_QUEUE": "many", "PWGRID_HOST": "0.0.0.0"}, {"port": 70000})
    assert caught.value.exit_code == 2
    assert [violation.name for violation in caught.value.violations] == [
        "redis_port",
        "what in [redis]",
        "max_queue",
        "port",
        "host",
    ]
    assert str(caught.value).startswith("the configuration has 5 faults:\n  redis_port: 0 (")


def test_a_flag_that_is_no_setting_is_a_fault_of_the_caller() -> None:
    with pytest.raises(KeyError):
        load(None, {}, {"colour": "red"})


def test_a_path_may_be_given_as_a_flag() -> None:
    assert load(None, {}, {"runtime_dir": Path("/run/x")}).settings.runtime_dir == "/run/x"


SECRET = "hunter2"


@pytest.mark.parametrize(
    "environ",
    [
        {"PWGRID_TOKEN": f"{SECRET} {SECRET}"},
        {"REDIS_URL": f"http://user:{SECRET}@h/0"},
        {"REDIS_URL": f"redis://{SECRET}@h:x/0"},
        {"REDIS_URL": f"redis://:{SECRET}/@:{SECRET}@h/no"},
        {"REDIS_URL": f"user:{SECRET}@h:1"},
        {"REDIS_URL": f"redis://h/no?password={SECRET}&x=1"},
        {"REDIS_URL": f"redis://u:[{SECRET}@h/0"},
    ],
)
def test_no_message_shows_a_secret(environ: dict[str, str]) -> None:
    (line,) = faults(environ=environ)
    assert SECRET not in line
    assert "***" in line


@pytest.mark.parametrize(
    "text", ["[listener]\ntokn = 'hunter2'", "[listener]\ntoken = ['hunter2']", "token = 'hunter2'"]
)
def test_no_message_shows_a_secret_of_the_file(tmp_path: Path, text: str) -> None:
    assert SECRET not in "".join(faults(written(tmp_path, text)))


def test_settings_are_checked_wherever_they_are_made_and_show_no_secret_then() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(token=Secret(f"{SECRET} {SECRET}"), max_queue=-1, host="0.0.0.0")
    assert [each["loc"] for each in caught.value.errors()] == [("token",), ("max_queue",)]
    assert SECRET not in str(caught.value)
    with pytest.raises(ValidationError, match="needs a token"):
        Settings(host="0.0.0.0")
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


def test_the_repr_of_settings_shows_no_secret() -> None:
    loaded = load(None, {"PWGRID_TOKEN": SECRET, "REDIS_URL": f"redis://:{SECRET}@h/0"}, {})
    assert loaded.settings.token.get_secret_value() == SECRET
    for shown in (repr(loaded), str(loaded.settings), str(loaded.settings.model_dump()), f"{loaded.settings.token}"):
        assert SECRET not in shown
    assert SECRET not in loaded.settings.model_dump_json()


NAMES = st.sampled_from(sorted(SETTINGS))
SCALARS = st.booleans() | st.integers() | st.integers(1 << 1100, 1 << 1200) | st.floats() | st.text() | st.none()
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=5
)


@given(NAMES, ANYTHING)
def test_whatever_a_file_or_flag_holds_is_a_value_of_the_right_type_or_unfit(name: str, given_value: object) -> None:
    with contextlib.suppress(ConfigError):
        assert type(getattr(load(None, {}, {name: given_value}).settings, name)) is type(getattr(Settings(), name))
    with contextlib.suppress(ValidationError):
        settings = Settings.model_validate({name: given_value}, strict=True)
        assert type(getattr(settings, name)) is type(getattr(Settings(), name))


@given(
    st.dictionaries(NAMES, st.text(st.characters(), max_size=30) | st.from_regex(r"-?\d{1,6}(\.\d+)?", fullmatch=True))
)
def test_whatever_the_environment_holds_loads_or_is_a_list_of_violations(given_values: dict[str, str]) -> None:
    environ = {SETTINGS[name].environment: text for name, text in given_values.items()}
    try:
        load(None, environ, {})
        shown, expected = "", 0
    except ConfigError as error:
        shown, expected = str(error), 1 + len(error.violations)
    assert len(shown.splitlines()) == expected != 1


@given(st.binary(max_size=200) | st.text(alphabet="[]=\"'.#\n{}1etru,redislnpo_", max_size=100).map(str.encode))
def test_whatever_the_file_holds_loads_or_is_a_list_of_violations(content: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(ConfigError):
            load(Path(file.name), {}, {})


@pytest.mark.parametrize(
    ("environ", "flag", "log_format"),
    [
        ({}, None, ""),
        ({"LOG_FORMAT": "JSON"}, None, "json"),
        ({"PWGRID_LOG_FORMAT": "", "LOG_FORMAT": "json"}, None, "json"),
        ({"PWGRID_LOG_FORMAT": "text", "LOG_FORMAT": "json"}, None, "text"),
        ({"LOG_FORMAT": "json"}, "Text", "text"),
        ({}, " Json", "json"),
    ],
)
def test_errors_of_the_settings_are_told_in_the_format_that_the_log_would_have(
    environ: dict[str, str], flag: str | None, log_format: str
) -> None:
    assert log_format_of(environ, {"log_format": flag}) == log_format
    assert load(None, environ, {"log_format": flag}).settings.log_format == (log_format or "text")
