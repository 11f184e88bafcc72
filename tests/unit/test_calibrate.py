"""What follows from measured figures, how it is drawn, and how it gets into a file."""

import asyncio
import os
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pwgrid.cli.calibrate import main as calibration
from pwgrid.cli.calibrate import measure, plot, sizing
from pwgrid.cli.calibrate.measure import CalibrateOptions, settings_for
from pwgrid.cli.calibrate.sizing import Measured, Step
from pwgrid.cli.main import main
from pwgrid.cli.run import as_environment
from pwgrid.cli.token import Place, create
from pwgrid.common.errors import GridError
from pwgrid.settings.load import Loaded
from pwgrid.settings.load import load as load_settings
from tests.support.disk import nothing_can_be_written

FOUND = Measured(
    cores=4,
    available_mib=16_000,
    metric="pss",
    worker_mib=200,
    session_mib=100,
    growth_mib=0.0,
    launch_s=1.0,
    launches_per_s=2.0,
    cpu_s=0.5,
    steps=(),
)


def steps(*rates: float) -> tuple[Step, ...]:
    """1, 2, 4 … clients at once that brought so many sessions per second."""
    return tuple(
        Step(2**place, int(rate * 10), 0, 10.0, 2**place / rate, 2 * 2**place / rate, 1.0)
        for place, rate in enumerate(rates)
    )


@pytest.mark.parametrize(
    ("rates", "clients"),
    [
        ((2, 4, 8, 9, 9.1), 8),  # 4 bring 8 of 9.1: less than nine tenths
        ((2, 4, 8.3, 9, 9.1), 4),
        ((2, 4, 8, 16), 8),
        ((5, 4, 3), 1),
        ((3,), 1),
    ],
)
def test_it_bends_where_the_fewest_clients_bring_nearly_all(rates: Sequence[float], clients: int) -> None:
    assert sizing.bend(steps(*rates)).clients == clients


@pytest.mark.parametrize(
    ("rates", "goes_on"),
    [
        ((2,), True),
        ((2, 2), True),
        ((2, 4, 8), True),
        ((2, 4, 4.2, 4.3), False),
        ((2, 4, 3, 8), True),
        ((4, 3, 2), False),
    ],
)
def test_more_clients_are_tried_as_long_as_they_bring_more(rates: Sequence[float], goes_on: bool) -> None:
    assert sizing.goes_on(steps(*rates)) is goes_on


@pytest.mark.parametrize(
    ("changes", "workers", "slots"),
    [
        ({}, 2, 4),  # bends at 8
        ({"steps": steps(2, 4, 8, 12, 23)}, 4, 4),  # bends at 16: no more than 5 in one browser
        ({"steps": steps(5, 5)}, 1, 1),
        ({"steps": steps(2, 4)}, 2, 1),
        ({"available_mib": 2_000}, 2, 3),  # 0.8 × 2000 - 256 - 3 × 200 = 744: seven, so memory decides
        ({"available_mib": 1_000}, 1, 1),
        ({"available_mib": 100}, 1, 1),
    ],
)
def test_workers_and_slots_follow_from_the_bend_and_from_memory(
    changes: dict[str, object], workers: int, slots: int
) -> None:
    found = replace(FOUND, **{"steps": steps(2, 4, 6, 12, 12.5), **changes})  # type: ignore[arg-type]
    settings = sizing.propose(found, "chromium", 256).settings
    assert (settings["chromium_workers"], settings["max_concurrent_sessions"]) == (workers, slots)


def test_memory_limits_leave_a_full_worker_room() -> None:
    settings = sizing.propose(replace(FOUND, steps=steps(2, 4, 6, 12, 12.5)), "firefox", 256).settings
    assert settings["firefox_workers"] == 2
    assert settings["max_worker_memory_mib"] == 2 * (200 + 4 * 100)
    assert settings["max_worker_memory_hard_mib"] == 3 * (200 + 4 * 100)


@pytest.mark.parametrize(
    ("changes", "lifetime"),
    [
        ({}, 100),  # a launch of 1 s is 2 % of the work of 100 sessions of 0.5 s
        ({"cpu_s": 5.0}, 50),
        ({"launch_s": 100.0}, 1000),
        ({"growth_mib": 4.0}, 75),  # 600 MiB between a full worker and its limit: half of that by growth
        ({"growth_mib": 400.0}, 50),
    ],
)
def test_a_lifetime_makes_launches_cheap_and_growth_bearable(changes: dict[str, float], lifetime: int) -> None:
    found = replace(FOUND, steps=steps(2, 4, 6, 12, 12.5), **changes)  # type: ignore[arg-type]
    assert sizing.propose(found, "chromium", 256).settings["max_lifetime_sessions"] == lifetime


def test_what_is_proposed_is_taken_by_a_grid(tmp_path: Path) -> None:
    proposal = sizing.propose(replace(FOUND, steps=steps(2, 4, 8, 9)), "chromium", 256)
    path = tmp_path / "grid.toml"
    calibration.write(path, proposal.settings)
    settings = load_settings(path, {}, {}).settings
    assert {name: getattr(settings, name) for name in proposal.settings} == proposal.settings


def test_all_of_it_is_told_as_json() -> None:
    found = replace(FOUND, steps=steps(2, 4, 8, 9))
    data = sizing.as_data(found, sizing.propose(found, "chromium", 256))
    assert data["bend"] == 8
    assert [step["per_s"] for step in data["measured"]["steps"]] == [2, 4, 8, 9]
    assert data["proposal"]["chromium_workers"] == 2


def test_the_plot_fits_80_columns_and_says_where_it_bends() -> None:
    lines = plot.as_text(steps(2, 4, 8, 8.1))
    assert [len(line.split("  < ")[0]) <= 80 for line in lines] == [True] * 5
    assert [line.count("#") for line in lines] == [0, 7, 14, 28, 28]
    assert ["bends here" in line for line in lines] == [False, False, False, True, False]


def test_the_svg_stands_alone_and_has_a_point_for_each_step() -> None:
    found = steps(2, 4, 8, 8.1)
    svg = ElementTree.fromstring(plot.as_svg(found, "pages <of mine> & yours"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}circle")) == 2 * len(found)
    texts = [each.text for each in svg.findall(f"{space}text")]
    assert {"pages <of mine> & yours", "bends at 4", "1", "2", "4", "8", "8.10/s"} <= set(texts)
    rates, _ = (each.get("points", "").split() for each in svg.findall(f"{space}polyline"))
    heights = [float(point.split(",")[1]) for point in rates]
    assert heights == sorted(heights, reverse=True)  # y goes down: more sessions are higher up


WANTED = {"chromium_workers": 7, "max_worker_memory_mib": 900}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "[workers]\nchromium_workers = 7\n\n[memory]\nmax_worker_memory_mib = 900\n"),
        (
            "# mine\n[workers]\nchromium_workers = 2 # two\na = 1\n\n[memory] # limits\n",
            "# mine\n[workers]\nchromium_workers = 7\na = 1\n\n[memory] # limits\nmax_worker_memory_mib = 900\n",
        ),
        (
            "[memory]\n# A limit.\n#max_worker_memory_mib = 0\n[workers]\na = 1\n\n\n[canary]\n",
            "[memory]\n# A limit.\nmax_worker_memory_mib = 900\n[workers]\na = 1\nchromium_workers = 7\n\n\n[canary]\n",
        ),
    ],
)
def test_settings_get_into_their_sections_and_all_else_stays(before: str, after: str) -> None:
    assert calibration.with_settings(before, WANTED) == after


def test_the_shipped_file_takes_them_where_their_comments_are() -> None:
    shipped = (Path(__file__).parents[2] / "config/grid.toml").read_text()
    changed = calibration.with_settings(shipped, WANTED)
    assert len(changed.splitlines()) == len(shipped.splitlines())
    assert tomllib.loads(changed) == {
        **{section: {} for section in tomllib.loads(shipped)},
        "workers": {"chromium_workers": 7},
        "memory": {"max_worker_memory_mib": 900},
    }


@pytest.mark.parametrize("text", ["workers = {chromium_workers = 2}\n", "workers.chromium_workers = 2\n", "not toml"])
def test_a_file_that_is_written_in_another_way_is_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(text)
    with pytest.raises(GridError, match="put the settings in by hand"):
        calibration.write(path, WANTED)
    assert path.read_text() == text


def test_a_file_keeps_its_mode_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text("")
    path.chmod(0o600)
    calibration.write(path, WANTED)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    (tmp_path / "kept.toml").touch()
    path.symlink_to("kept.toml")
    calibration.write(path, WANTED)
    assert path.is_symlink()
    assert "chromium_workers = 7" in (tmp_path / "kept.toml").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_file_stays_its_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.touch()
    os.chown(path, 12345, 54321)
    calibration.write(path, WANTED)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_directory_where_no_file_can_be_replaced_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "grid.toml").touch()
    (tmp_path / "grid.toml").symlink_to("there/grid.toml")
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != tmp_path / "there")  # root may write anywhere
    monkeypatch.setattr(measure, "calibrate", lambda *_: pytest.fail("a grid is started"))
    loaded = replace(load_settings(None, {}, {}), config_file=tmp_path / "grid.toml")
    asked = CalibrateOptions(None, None, "chromium", 1.0, 1, None, write=True, as_json=False)
    with pytest.raises(GridError, match=r"grid.toml cannot be written: name another file by --config"):
        calibration.main(asked, loaded, [], {})


def test_what_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    loaded = replace(load_settings(None, {}, {}), config_file=tmp_path / "none/grid.toml")
    asked = CalibrateOptions(None, None, "chromium", 1.0, 1, None, write=True, as_json=False)
    with pytest.raises(GridError, match=r"none/grid.toml cannot be written: name another file by --config"):
        calibration.main(asked, loaded, [], {})


@pytest.mark.parametrize(
    "variable", ["PWGRID_CHROMIUM_WORKERS", "CHROMIUM_WORKERS", "PWGRID_MAX_WORKER_MEMORY_MIB", "MAX_WORKER_MEMORY_MIB"]
)
def test_no_variable_of_the_user_overrides_what_is_set_for_the_measurement(variable: str) -> None:
    asked = CalibrateOptions(None, None, "chromium", 1.0, 9, None, write=False, as_json=False)
    settings = load_settings(None, {variable: "4", **as_environment(settings_for(asked))}, {}).settings
    assert (settings.chromium_workers, settings.max_worker_memory_mib) == (1, 0)


def test_no_flag_overrides_what_is_set_for_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Sequence[str]] = []
    monkeypatch.setattr(calibration, "main", lambda _asked, _loaded, arguments, _environment: started.append(arguments))
    flags = ["--chromium", "4", "--firefox", "2", "--slots", "3", "--log-level", "debug", "--prefer", "system"]
    done = CliRunner().invoke(main, ["calibrate", "--most", "1", *flags], catch_exceptions=False)
    assert (done.exit_code, started) == (0, [["--port", "0", "--prefer", "system"]])


POOLS = """
[[pools]]
name = "chromium"
browser = "chromium"
workers = 3
[[pools]]
name = "b"
browser = "chromium"
workers = 2
"""


def test_one_pool_is_measured_whatever_pools_there_are(tmp_path: Path) -> None:
    asked = CalibrateOptions(None, None, "firefox", 1.0, 9, None, write=False, as_json=False)
    config = tmp_path / "grid.toml"
    config.write_text(POOLS)
    for variables in ({}, {"POOL_CONFIG": "AppA:Chromium:Staging=3"}, {"PWGRID_POOL_CONFIG": "AppA:Webkit:UAT=1"}):
        settings = load_settings(config, {**variables, **as_environment(settings_for(asked))}, {}).settings
        assert [(each.name, each.workers) for each in settings.pools_with_workers()] == [("firefox", 1)]


def test_what_is_proposed_for_a_grid_with_pools_is_for_a_pool_s_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "grid.toml"
    config.write_text(POOLS)
    loaded = load_settings(config, {}, {})
    monkeypatch.setattr(measure, "calibrate", lambda *_: replace(FOUND, steps=steps(2, 4, 6, 12, 12.5)))
    asked = CalibrateOptions(None, None, "chromium", 1.0, 2, None, write=False, as_json=False)
    calibration.main(asked, loaded, [], {})
    table = [line for line in capsys.readouterr().out.splitlines() if " = " in line]
    assert table[:2] == ["workers = 2", "slots = 4"]
    config.write_text('[[pools]]\nname = "a"\nbrowser = "chromium"\n' + "\n".join(table))
    (pool,) = load_settings(config, {}, {}).settings.pools_with_workers()
    assert (pool.workers, pool.slots, pool.max_memory_hard_mib) == (2, 4, 1800)
    with pytest.raises(GridError, match=r"--write: there are pools \(.*grid.toml\)"):
        calibration.main(replace(asked, write=True), loaded, [], {})
    assert capsys.readouterr().out == ""


def test_a_server_s_address_and_tokens_are_not_those_of_the_grid_that_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "grid.toml"
    config.write_text('[listener]\nhost = "0.0.0.0"\nadvertised_url = "wss://grid.example.org"\n')
    create(Place(tmp_path / "tokens.json"), "somebody", "client", 0, [])
    started: list[Loaded] = []
    monkeypatch.setattr(calibration, "main", lambda _asked, loaded, *_: started.append(loaded))
    done = CliRunner().invoke(main, ["calibrate", "--config", str(config)])
    assert done.exit_code == 0, done.output
    assert (started[0].settings.host, started[0].settings.client_url()) == ("127.0.0.1", "ws://127.0.0.1:8080")


@pytest.mark.parametrize("as_json", [False, True])
def test_what_was_measured_is_told_also_where_a_file_cannot_be_written(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "calibrate", lambda *_: replace(FOUND, steps=steps(1.0, 1.5)))
    asked = CalibrateOptions(None, None, "chromium", 1.0, 2, tmp_path / "none/x.svg", write=False, as_json=as_json)
    with pytest.raises(GridError, match=r"none/x.svg cannot be written"):
        calibration.main(asked, load_settings(None, {}, {}), [], {})
    assert "chromium_workers" in capsys.readouterr().out


class Client:
    """Fails each third session."""

    def __init__(self) -> None:
        self.live = self.most = self.sessions = 0

    async def session(self) -> None:
        self.live += 1
        self.most = max(self.most, self.live)
        self.sessions += 1
        number = self.sessions
        await asyncio.sleep(0.001)
        self.live -= 1
        if number % 3 == 0:
            raise measure.SessionFailed("no luck")


async def test_so_many_clients_have_one_session_after_the_other_and_failures_are_counted_apart() -> None:
    client = Client()
    step, failures = await measure.run_clients(client.session, 4, 0.1)
    assert (client.most, client.live) == (4, 0)
    assert (step.clients, step.sessions + step.failed) == (4, client.sessions)
    assert step.failed == len(failures) == client.sessions // 3 > 0
    assert 0 < step.p50_s <= step.p95_s <= step.seconds


async def test_a_session_that_fails_is_not_measured() -> None:
    async def fail() -> None:
        raise measure.SessionFailed("net::ERR_NAME_NOT_RESOLVED")

    with pytest.raises(GridError, match="the session that is to be measured fails: net::ERR_NAME_NOT_RESOLVED"):
        await measure.once(fail)


@pytest.mark.parametrize(
    ("name", "mode", "problem"),
    [("none.py", None, "there is no such file"), ("plain.txt", 0o644, "it is neither .py nor .js, and not executable")],
)
def test_a_script_that_cannot_be_run_is_refused(name: str, mode: int | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if mode is not None:
        path.write_text("")
        path.chmod(mode)
    with pytest.raises(GridError, match=problem):
        measure.command(path)


def test_a_script_that_is_not_there_is_refused_before_a_grid_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "calibrate", lambda *_: pytest.fail("a grid is started"))
    script = tmp_path / "none.py"
    asked = CalibrateOptions(None, script, "chromium", 1.0, 1, None, write=False, as_json=False)
    with pytest.raises(GridError, match="there is no such file"):
        calibration.main(asked, load_settings(None, {}, {}), [], {})
    assert capsys.readouterr().out == ""


async def test_a_script_that_fails_says_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("import os, sys\nsys.exit('no grid at ' + os.environ['PWGRID_WS_ENDPOINT'])\n")
    with pytest.raises(measure.SessionFailed, match=r"fails.py ended with 1: no grid at ws://127.0.0.1:1"):
        await measure.run_program(measure.command(path), {"PWGRID_WS_ENDPOINT": "ws://127.0.0.1:1"})


def test_a_file_that_cannot_be_written_stays_as_it_was_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text("[proxy]\nmax_queue = 7\n")
    with nothing_can_be_written(), pytest.raises(GridError, match=r"grid\.toml cannot be written: File too large"):
        calibration.write(path, WANTED)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "[proxy]\nmax_queue = 7\n"
