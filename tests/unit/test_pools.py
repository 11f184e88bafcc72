"""Pools as configured: tables, POOL_CONFIG, the short form, and what each pool is with the global settings."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pwgrid.cli.main import main
from pwgrid.common import label_keys
from pwgrid.common.errors import BrowserMissing, ConfigError
from pwgrid.common.types import Isolation
from pwgrid.control.frames import MAX_FRAME_BYTES, encode
from pwgrid.installed.browsers import SearchPaths, find_for_pool
from pwgrid.master.workers.pool import Pool
from pwgrid.settings import load as config
from pwgrid.settings.load import Loaded, load
from pwgrid.settings.model import Settings
from pwgrid.settings.pools import name_of_label, read_pool_config
from pwgrid.settings.show_with_sources import described, show
from pwgrid.worker.browser.launch import LaunchSpec


@pytest.fixture(autouse=True)
def _no_file_in_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "none.toml")


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(text: str, **environment: str) -> Loaded:
        file = tmp_path / "grid.toml"
        file.write_text(text)
        return load(file, environment, {})

    return read


NO_TABLES = "pools: must be tables: [[pools]]; chromium_workers and the like are in [workers]"


def faults_of(read: Any, text: str, **environment: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        read(text, **environment)
    return [f"{each.name}:{' ' * bool(each.value)}{each.value} {each.rule}" for each in error.value.violations]


def pool(text: str) -> str:
    return f'[[pools]]\nname = "appa"\nbrowser = "chromium"\n{text}\n'


def test_the_numbers_of_workers_are_the_short_form_of_three_pools() -> None:
    settings = Settings(chromium_workers=2, firefox_workers=1, max_concurrent_sessions=7, chromium_args=("--a",))
    assert [(each.name, each.browser_type, each.workers) for each in settings.pools_wanted().values()] == [
        ("chromium", "chromium", 2),
        ("firefox", "firefox", 1),
        ("webkit", "webkit", 0),
    ]
    assert [each.slots for each in settings.pools_wanted().values()] == [7, 7, 7]
    assert [each.args for each in settings.pools_wanted().values()] == [("--a",), (), ()]


def test_a_table_says_all_that_a_pool_has_and_the_global_settings_say_the_rest(read: Any) -> None:
    settings = read(
        """
        [workers]
        max_concurrent_sessions = 3
        max_lifetime_sessions = 30
        [browsers]
        headless = false
        chromium_args = ["--global"]
        [[pools]]
        name = "appa"
        browser = "Chromium"
        labels = ["AppA:Chromium:Staging", "AppA:Chromium:UAT:EU"]
        [[pools]]
        name = "appb"
        workers = 2
        slots = 9
        lifetime = 90
        max_memory_mib = 900
        max_memory_hard_mib = 1000
        executable = "/opt/chrome"
        headless = true
        args = ["--own"]
        proxy = "http://me:p%40ss@proxy:3128"
        env = { TZ = "Europe/Berlin" }
        labels = ["AppB:Chromium:UAT"]
        """
    ).settings
    first, second = settings.pools_wanted().values()
    assert (first.name, first.browser_type, first.workers, first.slots, first.lifetime) == (
        "appa",
        "chromium",
        1,
        3,
        30,
    )
    assert (first.headless, first.args, first.labels[1]) == (False, ("--global",), "AppA:Chromium:UAT:EU")
    assert (second.browser_type, second.slots, second.lifetime, second.headless) == ("chromium", 9, 90, True)
    assert (second.max_memory_mib, second.max_memory_hard_mib, second.args) == (900, 1000, ("--own",))
    assert second.proxy is not None
    assert second.proxy.options() == {"server": "http://proxy:3128", "username": "me", "password": "p@ss"}
    assert {name: value.get_secret_value() for name, value in second.env.items()} == {"TZ": "Europe/Berlin"}

    mine = settings.of_pool(second)
    assert (mine.max_concurrent_sessions, mine.max_lifetime_sessions, mine.headless) == (9, 90, True)
    assert (mine.max_worker_memory_mib, mine.max_worker_memory_hard_mib) == (900, 1000)
    assert (mine.executable("chromium"), mine.chromium_args) == ("/opt/chrome", ("--own",))


def test_who_names_pools_gets_no_others_but_those_that_are_asked_for(read: Any) -> None:
    assert [*read(pool("")).settings.pools_wanted()] == ["appa"]
    both = read(pool(""), CHROMIUM_WORKERS="1").settings
    assert [(each.name, each.workers) for each in both.pools_wanted().values()] == [("chromium", 1), ("appa", 1)]
    assert both.workers_wanted() == {"chromium": 2, "firefox": 0, "webkit": 0}


def test_the_default_browser_is_that_of_the_pools(read: Any) -> None:
    loaded = read('[[pools]]\nname = "ff"\nbrowser = "firefox"\n')
    assert loaded.settings.default_browser_type == "firefox"
    assert loaded.sources["default_browser_type"] == "default, the only browser with workers"


def test_the_environment_names_label_keys_with_numbers_of_workers() -> None:
    loaded = load(None, {"POOL_CONFIG": "AppA:Chromium:Staging=3, AppB:Firefox:UAT=1"}, {})
    assert [
        (each.name, each.browser_type, each.workers, each.labels) for each in loaded.settings.pools_wanted().values()
    ] == [
        ("appa-chromium-staging", "chromium", 3, ("AppA:Chromium:Staging",)),
        ("appb-firefox-uat", "firefox", 1, ("AppB:Firefox:UAT",)),
    ]
    assert loaded.sources["pools"] == "environment POOL_CONFIG"


def test_the_environment_takes_the_place_of_the_files_pools(read: Any) -> None:
    assert [*read(pool(""), POOL_CONFIG="B:Firefox=1").settings.pools_wanted()] == ["b-firefox"]


def test_pools_of_label_keys_have_names_of_their_own() -> None:
    tables, faults = read_pool_config("A.B:Chromium=1,A-B:Chromium=1")
    assert faults == []
    assert tables[0].name == "a-b-chromium"
    assert tables[1].name.startswith("a-b-chromium-")
    long = ":".join(["a" * 60, "Chromium", "b" * 60])
    assert len(name_of_label(long)) == 63


def test_all_that_is_wrong_with_pools_is_told_at_once(read: Any) -> None:
    text = """
        [[pools]]
        name = "appa"
        browser = "opera"
        workers = 1001
        slots = "5"
        [[pools]]
        name = "App B"
        browser = "firefox"
        worker = 3
        [[pools]]
        browser = "chromium"
        headless = 1
        labels = ["AppA:Chromium", "AppA"]
        proxy = "proxy:3128"
        env = { TMPDIR = "/x" }
        """
    assert faults_of(read, text) == [
        "pools.appa.browser: 'opera' must be one of chromium, firefox, webkit",
        "pools.appa.workers: 1001 must be 0 to 1000",
        "pools.appa.slots: '5' must be a whole number, 1 to 1000",
        "pools[2].name: 'App B' must be 1 to 63 lower case letters, digits, - and _, and begin with a letter or digit",
        "pools[2].worker: unknown key of a pool; did you mean workers?",
        "pools[3]: must say its name",
        "pools[3].headless: 1 must be true or false",
        "pools[3].proxy: must be a URL like http://proxy:3128, without user and password in a table's server",
        "pools[3].env: TMPDIR is what the grid itself gives to browser servers",
        "pools[3].labels: ['AppA:Chromium', 'AppA'] 'AppA' is no label key (it has 1 segment): " + label_keys.RULE,
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[[pools]]\nname = "x"\n', "pools.x: must say its browser, one of chromium, firefox, webkit"),
        (
            pool('labels = ["A:Firefox"]'),
            "pools.appa.labels: 'A:Firefox' names another browser than the pool has, chromium",
        ),
        (pool("") + pool(""), "pools.appa: another pool has this name, too"),
        (
            pool('labels = ["A:Chromium:x"]') + '[[pools]]\nname = "b"\nlabels = ["a:chromium:X"]\n',
            "pools.b.labels: 'a:chromium:X' is a label key of pool appa already",
        ),
        (
            pool('labels = ["A:Chromium", "A:chromium"]'),
            "pools.appa.labels: 'A:Chromium' is a label key of pool appa already",
        ),
        (
            '[[pools]]\nname = "firefox"\nbrowser = "chromium"\n',
            "pools.firefox.browser: 'chromium' a pool named firefox must have that browser",
        ),
        (
            pool('executable = "/x"\nchannel = "chrome"'),
            "pools.appa.channel: 'chrome' executable is set, too: leave one of them out",
        ),
        ("pools = 3\n", NO_TABLES),
        ("pools = [3]\n", NO_TABLES),
        ("[poolz]\n", "poolz: unknown section; did you mean pools?"),
        ("[pools]\nchromium_workers = 1\n", NO_TABLES),
        (
            pool("workers = 0"),
            "pools: appa chromium_workers, firefox_workers, webkit_workers: one of them must be at least 1",
        ),
    ],
)
def test_what_no_pools_may_be(read: Any, text: str, fault: str) -> None:
    assert fault in faults_of(read, text)


def test_a_pool_gives_what_its_table_or_the_global_settings_say(read: Any) -> None:
    text = pool("") + '[[pools]]\nname = "b"\nbrowser = "chromium"\nisolation = "Context"\nmax_own_browsers = 3\n'
    settings = read(text, ISOLATION="browser", WARM_BROWSERS="4", MAX_OWN_BROWSERS="9").settings
    first, second = settings.pools_wanted().values()
    assert (first.isolation, first.warm, first.max_own_browsers) == (Isolation.BROWSER, 4, 9)
    assert (second.isolation, second.warm, second.max_own_browsers) == (Isolation.CONTEXT, 0, 3)
    mine = settings.of_pool(second)
    assert (mine.isolation, mine.warm_browsers, mine.max_own_browsers) == (Isolation.CONTEXT, 0, 3)
    short = load(None, {"ISOLATION": "process", "MAX_CONCURRENT_SESSIONS": "7"}, {}).settings.short_form("chromium")
    assert (short.isolation, short.slots, short.lifetime, short.warm) == (Isolation.PROCESS, 1, 1, 0)


@pytest.mark.parametrize(
    ("text", "environment", "lifetime"),
    [
        ("", {}, 1000),
        ("lifetime = 50", {}, 50),
        ("", {"MAX_LIFETIME_SESSIONS": "50"}, 50),
        ("lifetime = 7", {"MAX_LIFETIME_SESSIONS": "50"}, 7),
    ],
)
def test_a_worker_of_own_browsers_lives_for_more_sessions_unless_somebody_says_how_many(
    read: Any, text: str, environment: dict[str, str], lifetime: int
) -> None:
    settings = read(pool(f'isolation = "browser"\n{text}'), **environment).settings
    (mine,) = settings.pools_wanted().values()
    assert (mine.lifetime, settings.of_pool(mine).max_lifetime_sessions) == (lifetime, lifetime)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('isolation = "process"\nslots = 2', "slots must be 1 with isolation process: leave it out, or take another"),
        ('isolation = "process"\nlifetime = 9', "lifetime must be 1 with isolation process: leave it out"),
        ('isolation = "process"\nwarm = 2', "warm is for isolation browser, and this pool has process: leave it out"),
        ("warm = 2", "warm is for isolation browser, and this pool has context: leave it out, or change isolation"),
    ],
)
def test_what_a_pool_s_isolation_does_not_allow_is_refused(read: Any, text: str, sentence: str) -> None:
    (fault,) = faults_of(read, pool(text))
    assert f"pool appa: {sentence}" in fault


def test_what_a_pool_s_isolation_demands_may_be_written_down(read: Any) -> None:
    (mine,) = read(pool('isolation = "process"\nslots = 1\nlifetime = 1\nwarm = 0')).settings.pools_wanted().values()
    assert (mine.slots, mine.lifetime) == (1, 1)


def test_an_unknown_isolation_is_told_those_that_there_are(read: Any) -> None:
    assert faults_of(read, pool('isolation = "vm"')) == [
        "pools.appa.isolation: 'vm' must be one of context, browser, process"
    ]
    with pytest.raises(ConfigError, match="did you mean browser"):
        load(None, {"ISOLATION": "browsr"}, {})


def test_switches_of_clients_are_allowed_by_name() -> None:
    settings = load(None, {"ALLOWED_BROWSER_ARGS": "--lang --use-* *"}, {}).settings
    assert settings.allowed_browser_args == ("--lang", "--use-*", "*")
    for text in ("lang", "--lang=de", "--a*b", "-"):
        with pytest.raises(ConfigError, match="must be names of command line switches"):
            load(None, {"ALLOWED_BROWSER_ARGS": text}, {})


def test_a_pools_limit_of_memory_is_held_against_the_global_one(read: Any) -> None:
    (fault,) = faults_of(read, "[memory]\nmax_worker_memory_hard_mib = 500\n" + pool("max_memory_mib = 600"))
    assert fault.endswith("pool appa: max_memory_mib (600) must be < max_memory_hard_mib (500)")


def test_a_pool_that_the_short_form_names_too_is_refused(read: Any) -> None:
    text = '[workers]\nchromium_workers = 1\n[[pools]]\nname = "chromium"\nbrowser = "chromium"\n'
    (fault,) = faults_of(read, text)
    assert fault.startswith("chromium_workers: 1 pool chromium is set by [[pools]], too (")
    assert fault.endswith("): leave one of them out")


@pytest.mark.parametrize("text", ["AppA:Chromium", "AppA:Chromium=x", "AppA:Chromium=-1"])
def test_pool_config_needs_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="must be label keys with numbers of workers"):
        load(None, {"POOL_CONFIG": text}, {})


@pytest.mark.parametrize("text", ["AppA:Opera:X=1", "AppA=1", ":Chromium=1", "A:Chromium=1,a:chromium=2", "A:*:B=1"])
def test_malformed_label_keys_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="label key"):
        load(None, {"POOL_CONFIG": text}, {})


def test_pools_are_shown_without_their_secrets(read: Any) -> None:
    loaded = read(pool('proxy = "http://me:hunter2@proxy:1"\nenv = { KEY = "hunter2" }'))
    table = described(loaded.settings, loaded.sources)
    assert table["pools"]["value"] == [
        {
            "name": "appa",
            "browser": "chromium",
            "proxy": {"server": "http://proxy:1", "username": "me", "password": "***"},
            "env": {"KEY": "***"},
        }
    ]
    assert '{name = "appa", browser = "chromium", ' in show(table)
    assert "hunter2" not in show(table) + repr(loaded.settings) + repr(loaded.settings.pools_wanted())


def test_the_number_of_pools_is_bounded_and_so_is_what_they_say() -> None:
    many = ",".join(f"A{n}:Chromium=0" for n in range(65))
    long = ",".join(f"{n:064}:Chromium:{'x' * 64}:{'y' * 64}:{'z' * 64}=1" for n in range(62))
    for text, written in ((many, "65 with 770"), (long, "62 with 16616")):
        (fault,) = read_pool_config(text)[1]
        assert fault.value == written
        assert fault.rule == "there may be at most 64 pools, with 16384 characters of labels and args together"


def test_the_most_pools_that_there_may_be_fit_into_a_frame() -> None:
    text = ",".join(f"{n:060}:Chromium:{'x' * 64}:{'y' * 28}=1" for n in range(64))
    tables, faults = read_pool_config(text)
    assert faults == []
    pools = Settings(chromium_workers=0, pools=tables).pools_wanted()
    entries = {name: Pool(pool, 0.0, {}).roster_entry() for name, pool in pools.items()}
    assert len(encode({"t": "state", "data": {"pools": entries}})) < MAX_FRAME_BYTES // 2


def test_a_pool_counts_its_own_workers_alone() -> None:
    workers: dict[str, Any] = {}
    pools = [Pool(each, 0.0, workers) for each in Settings(firefox_workers=1).pools_wanted().values()]
    workers["a"], workers["b"] = (SimpleNamespace(pool=pool) for pool in pools[:2])
    assert [pool.members for pool in pools[:2]] == [[workers["a"]], [workers["b"]]]


def test_what_changes_a_pool_changes_what_its_workers_are_told_apart_by(read: Any) -> None:
    def own(text: str) -> object:
        return read(pool(text)).settings.pools_wanted()["appa"].own

    texts = ("", 'env = { A = "1" }', 'env = { A = "2" }', 'proxy = "http://a:b@h"', 'proxy = "http://a:c@h"')
    assert len({repr(own(text)) for text in (*texts, 'labels = ["A:Chromium"]', 'channel = "chrome"')}) == 7


def test_a_browser_server_is_launched_with_what_its_pool_says(read: Any, tmp_path: Path) -> None:
    settings = read(
        '[browsers]\nchromium_args = ["--global"]\n'
        + pool('channel = "chrome"\nslots = 2\nheadless = false\nproxy = "http://me:p@proxy:1"\nenv = { TZ = "UTC" }')
    ).settings
    (mine,) = settings.pools_wanted().values()
    chrome = tmp_path / "opt/google/chrome/chrome"
    with pytest.raises(BrowserMissing) as missing:
        find_for_pool(mine, settings, SearchPaths(root=tmp_path))
    assert missing.value.sentence == (
        "the channel of pool appa is chrome, and there is no such browser at /opt/google/chrome/chrome: "
        "install it there, as its maker's package does, or name an executable instead"
    )
    chrome.parent.mkdir(parents=True)
    chrome.touch(0o755)
    browser = find_for_pool(mine, settings, SearchPaths(root=tmp_path))
    assert str(browser) == f"chromium: {chrome} (setting)"
    spec = LaunchSpec(settings.of_pool(mine), mine, browser, tmp_path)
    options = json.loads(spec.options())
    assert (options["channel"], options["executablePath"], options["headless"]) == ("chrome", str(chrome), False)
    assert (options["slots"], spec.environment()["TZ"]) == (2, "UTC")
    assert options["proxy"] == {"server": "http://proxy:1", "username": "me", "password": "p"}
    assert options["args"] == ["--global", "--disable-gpu-process-crash-limit"]  # for those who share it
    alone = settings.of_pool(mine).model_copy(update={"max_concurrent_sessions": 1})
    assert json.loads(replace(spec, settings=alone).options())["args"] == ["--global"]


@pytest.mark.parametrize(("browser", "channel"), [("chromium", "chromium-tip-of-tree"), ("firefox", "msedge")])
def test_a_channel_of_playwright_s_own_is_left_to_playwright(
    read: Any, tmp_path: Path, browser: str, channel: str
) -> None:
    text = pool(f'channel = "{channel}"').replace('"chromium"', f'"{browser}"', 1)
    mine = read(text).settings.pools_wanted()["appa"]
    assert find_for_pool(mine, Settings(), SearchPaths(root=tmp_path)).executable == ""


CHECKED = """\
the configuration is good

POOL                   BROWSER   WORKERS  SLOTS  CAPACITY  LIFETIME  LABELS
appa-chromium-staging  chromium  3        5      15        50        AppA:Chromium:Staging
appb-firefox-uat       firefox   1        5      5         50        AppB:Firefox:UAT

TOTAL     WORKERS  CAPACITY
chromium  3        15
firefox   1        5

effective capacity: 20 sessions at once
"""
TWO_LABELS = "AppA:Chromium:Staging=3,AppB:Firefox:UAT=1"


def checked(*arguments: str, pools: str) -> Result:
    for_a_pipe = {"PWGRID_CONFIG": None, "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "COLUMNS": None}
    return CliRunner().invoke(main, ["config", "check", *arguments], env={**for_a_pipe, "POOL_CONFIG": pools})


def test_config_check_shows_pools_totals_by_browser_and_what_they_amount_to() -> None:
    done = checked(pools=TWO_LABELS)
    assert (done.exit_code, done.output) == (0, CHECKED)


def test_config_check_as_json() -> None:
    found = json.loads(checked("--json", "--slots", "2", pools=TWO_LABELS).stdout)
    assert found["good"] is True
    assert found["pools"][0] == {
        "name": "appa-chromium-staging",
        "browserType": "chromium",
        "workers": 3,
        "slots": 2,
        "capacity": 6,
        "lifetime": 50,
        "isolation": "context",
        "labels": ["AppA:Chromium:Staging"],
    }
    assert found["totals"] == {"chromium": {"workers": 3, "capacity": 6}, "firefox": {"workers": 1, "capacity": 2}}
    assert (found["capacity"], found["defaultBrowserType"]) == (8, "chromium")


def test_config_check_shows_the_isolation_of_pools_if_any_is_isolated(read: Any, tmp_path: Path) -> None:
    read(pool('isolation = "browser"') + '[[pools]]\nname = "plain"\nbrowser = "chromium"\n')
    lines = checked("--config", str(tmp_path / "grid.toml"), pools="").output.splitlines()
    assert lines[2].split() == ["POOL", "BROWSER", "WORKERS", "SLOTS", "CAPACITY", "LIFETIME", "ISOLATION", "LABELS"]
    assert [lines[3].split()[-2:], lines[4].split()[-2:]] == [["1000", "browser"], ["50", "context"]]


def test_config_check_fails_on_a_malformed_label_in_text_and_json() -> None:
    done = checked(pools="AppA:Chromum:Staging=3")
    assert (done.exit_code, "is no label key (its second segment is no browser)" in done.output) == (2, True)
    done = checked("--json", pools="AppA:Chromum:Staging=3")
    (violation,) = json.loads(done.stdout)["violations"]
    assert (done.exit_code, violation["name"], violation["source"]) == (2, "pools", "environment POOL_CONFIG")
