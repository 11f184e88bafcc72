"""The command `pwgrid`. Parses and prints; every command's work is done elsewhere, imported only when it is needed."""

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from pwgrid import __version__
from pwgrid.cli.install.commands import install, uninstall
from pwgrid.common.errors import GridError, NoGridError
from pwgrid.common.session_lifecycle import SessionStatus
from pwgrid.common.types import BROWSER_TYPES

OWN_REDIS = {"redis_url": "", "redis_host": ""}
"""Flags for a grid that uses no Redis but its own, whatever a file says."""

Command = TypeVar("Command", bound=Callable[..., Any])

FLAGS = (
    "host",
    "port",
    "chromium_workers",
    "firefox_workers",
    "webkit_workers",
    "max_concurrent_sessions",
    "worker_select_timeout",
    "prefer",
    "token",
    "token_file",
    "allow_public",
    "log_level",
    "log_format",
    "runtime_dir",
)
"""The settings that have a flag."""

_GRID_OPTIONS: tuple[Any, ...] = (
    click.option("--port", type=int, help="The grid's port, if several grids run on this host."),
    click.option("--runtime-dir", help="Base of its runtime directory, if not the default."),
)


def _with(options: tuple[Any, ...]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _with_json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="As JSON.")(command)


def _say(found: Any, text: str, as_json: bool) -> None:
    """What came of a command: as JSON, or as a line."""
    from pwgrid.cli import output

    click.echo(output.as_json(found) if as_json else output.printable(text))


def _completing(what: str) -> Any:
    """What a shell may complete; looked for in the running grid only when a shell asks."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from pwgrid.cli import completion

        found: list[str] = getattr(completion, f"complete_{what}")(context, parameter, incomplete)
        return found

    return complete


@contextlib.contextmanager
def _until_ctrl_c() -> Iterator[None]:
    """Ctrl-C is how a user ends what goes on and on; the exit code is a shell's for it."""
    from pwgrid.cli import exit_codes

    try:
        yield
    except KeyboardInterrupt:
        sys.exit(exit_codes.INTERRUPTED)


class _Configured(click.Command):
    """A command that takes a configuration: --config and the flags. The model is loaded for these commands alone.

    `defaults` are the texts of those that differ here from the settings' own. Flags that are not `shown` are taken
    (`make up` gives the same ones to several commands) and mean nothing here.
    """

    def __init__(
        self, *arguments: Any, defaults: Mapping[str, str] | None = None, shown: Collection[str] = FLAGS, **others: Any
    ) -> None:
        super().__init__(*arguments, **others)
        self._defaults, self._shown = defaults or {}, shown

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        return [*self.configuration_options(), *super().get_params(context)]

    def configuration_options(self) -> list[click.Option]:
        """--config and the flags of the settings."""
        from pwgrid.settings.model import SETTINGS, bare

        file = click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="Configuration (TOML).")
        options = [file]
        for each in map(SETTINGS.__getitem__, FLAGS):
            default = self._defaults.get(each.name) or (bare(each.default) if each.default else "")
            options.append(
                click.Option(
                    [each.flag, each.name],
                    type=each.kind if each.kind in (bool, int) else str,
                    is_flag=each.kind is bool,
                    default=None,
                    metavar={int: "N", float: each.unit.upper()}.get(each.kind),
                    help=each.described() + (f" [{default}]" if default else ""),
                    hidden=each.name not in self._shown,
                )
            )
        return options


class _Commands(click.Group):
    """Turns the errors that are meant for users into one line and their exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except GridError as error:
            from pwgrid.cli.output import printable

            click.echo(f"pwgrid: {printable(str(error))}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:  # `pwgrid status | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pwgrid")
def main() -> None:
    """A grid of real Playwright browsers on this host, behind one endpoint."""


main.add_command(install)
main.add_command(uninstall)


def _load(
    config_file: Path | None,
    flags: dict[str, Any],
    environment: Mapping[str, str] = os.environ,
    *,
    private: bool = False,
) -> Any:
    from pwgrid.settings.load import load

    given = {name: value for name, value in flags.items() if value is not None}
    return load(config_file, environment, given, private=private)


@main.command(cls=_Configured)
@click.option("--ready-fd", type=int, hidden=True, help="Write one JSON line here when the grid is ready.")
@click.option("--lifeline-fd", type=int, hidden=True, help="Stop when the other end of this descriptor closes.")
@click.option(
    "--private", is_flag=True, hidden=True, help="Use no Redis that anything else may use, and no tokens but its own."
)
@click.option("--check-only", is_flag=True, hidden=True, help="Load the code and the configuration, start nothing.")
def serve(config_file: Path | None, private: bool, **rest: Any) -> None:
    """Runs the grid in the foreground until SIGTERM or Ctrl-C."""
    # None makes an import fail: structlog imports rich where it can, which takes 2 MiB in each process of the grid.
    sys.modules["rich"] = cast(Any, None)
    from pwgrid.cli.serve import Extras, errors_as_json, serve
    from pwgrid.settings.model import environment_names

    ready_fd, lifeline_fd, check_only = (rest.pop(name) for name in ("ready_fd", "lifeline_fd", "check_only"))
    flags = rest | (OWN_REDIS if private else {})
    names = environment_names("log_format")
    asked = flags["log_format"] or next((os.environ[name] for name in names if name in os.environ), "")
    with errors_as_json() if asked == "json" else contextlib.nullcontext():
        sys.exit(serve(_load(config_file, flags, private=private), Extras(ready_fd, lifeline_fd, check_only)))


@main.command(
    cls=_Configured,
    defaults={
        "port": "a free one",
        "max_concurrent_sessions": "from cores and memory",
        "worker_select_timeout": "600",
        "log_level": "warning",
    },
    context_settings={"ignore_unknown_options": True},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, config_file: Path | None, command: tuple[str, ...], **flags: Any) -> None:
    """Runs COMMAND with a private grid of its own.

    COMMAND finds the grid in PW_TEST_CONNECT_WS_ENDPOINT and PWGRID_WS_ENDPOINT: Playwright Test and pytest-playwright
    use it by themselves. The exit code is that of COMMAND, and the grid ends after it.

    The grid has a Redis of its own, recycles no worker after a number of sessions, and lets clients wait for a slot for
    ten minutes. COMMAND does not run where a browser cannot be started.

    \b
    pwgrid run --chromium 2 -- npx playwright test
    """
    from pwgrid.cli.private_settings import as_environment, private_settings
    from pwgrid.cli.run import grid_environment, run_command

    flags["port"] = flags["port"] or 0
    environment = grid_environment()
    loaded = _load(config_file, flags | OWN_REDIS, environment, private=True)  # complains here, not in the child
    environment |= as_environment(private_settings(loaded))
    sys.exit(run_command(_as_arguments({**flags, "config_file": config_file}), command, environment))


def _as_arguments(given: dict[str, Any]) -> list[str]:
    """The command line that stands for these option values."""
    arguments = []
    for option in cast(_Configured, serve).configuration_options():
        value = given[option.name]
        if value is not None:
            arguments += [option.opts[0]] if option.is_flag else [option.opts[0], str(value)]
    return arguments


@main.command(cls=_Configured, shown=("chromium_workers", "firefox_workers", "webkit_workers", "prefer"))
@click.option("--video", is_flag=True, help="Install ffmpeg as well, which sessions with recordVideo need.")
def setup(config_file: Path | None, video: bool, **flags: Any) -> None:
    """Finds or installs the browser of each pool that wants a worker, and launches it once.

    Says each step. What takes root, where there is none, becomes one command for you to run.
    """
    from pwgrid.cli import progress
    from pwgrid.setup.browsers import setup as setup_browsers

    settings = _load(config_file, flags).settings
    wanted = [pool for pool in settings.pools_wanted().values() if pool.workers > 0]
    with progress.display() as shown:
        setup_browsers(wanted, settings, progress.steps(shown), video=video)


@main.command(cls=_Configured)
@_with_json
def doctor(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Looks at all that a grid needs of this host, launches each browser once, and says what to do.

    Exits 1 if something will fail that the configuration asks for.
    """
    from dataclasses import asdict

    from pwgrid.cli.output import as_json as json_text
    from pwgrid.cli.output import printable
    from pwgrid.setup.doctor import examine

    findings = []
    for finding in examine(_load(config_file, flags).settings):
        findings.append(finding)
        if not as_json:
            click.echo(printable(f"{finding.level:5} {finding.name:12} {finding.found}"))
            if finding.to_do:
                click.echo(printable(f"{'':18} -> {finding.to_do}"))
    is_good = all(finding.level != "bad" for finding in findings)
    if as_json:
        click.echo(json_text({"good": is_good, "findings": [asdict(finding) for finding in findings]}))
    sys.exit(0 if is_good else 1)


@main.command(cls=_Configured, shown=("prefer",))
@click.option("--url", help="The page that a session opens. Without it one of 2,000 rows.")
@click.option(
    "--script",
    type=click.Path(path_type=Path),
    help="What a session does instead: a program (.py, .js or executable) that connects to $PWGRID_WS_ENDPOINT.",
)
@click.option("--browser", "browser_type", type=click.Choice(BROWSER_TYPES), default="chromium", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=8.0, show_default=True, help="For each step.")
@click.option("--most", type=click.IntRange(min=1), help="Clients at once in the last step.  [16 for each core]")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the plot here, too.")
@click.option("--write", is_flag=True, help="Write the proposal into the configuration file.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def calibrate(config_file: Path | None, **rest: Any) -> None:
    """Measures what this host carries with your own page or script, and proposes settings.

    A private grid with real browsers: what an idle worker and a session take, how fast browsers launch, how many
    sessions a second there are with 1, 2, 4 … clients at once, and where more clients bring no more. Clients and grid
    share this host, so stop what else runs here. --write puts workers, slots, memory limits and lifetime into the file
    that --config or $PWGRID_CONFIG names, or /etc/pwgrid/grid.toml.
    """
    from pwgrid.cli.calibrate import main as calibration
    from pwgrid.cli.run import grid_environment

    names = ("url", "script", "browser_type", "seconds", "most", "svg", "write", "as_json")
    asked = calibration.Asked(**{name: rest.pop(name) for name in names})
    environment = grid_environment()
    loaded = _load(config_file, rest | OWN_REDIS, environment)
    calibration.main(asked, loaded, _as_arguments({**rest, "port": 0, "config_file": config_file}), environment)


@main.group()
def config() -> None:
    """Checks and shows the configuration."""


@config.command("check", cls=_Configured)
@_with_json
def config_check(config_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Shows the pools, totals by browser and the effective capacity, if the configuration is good.

    Exits 0 then, else 2 with every violation, malformed label keys among them.
    """
    from dataclasses import asdict

    from pwgrid.cli import capacity, output
    from pwgrid.common.errors import ConfigError

    try:
        loaded = _load(config_file, flags)
        if loaded.strays:
            raise ConfigError(loaded.strays)
    except ConfigError as error:
        if as_json:
            click.echo(output.as_json({"good": False, "violations": [asdict(each) for each in error.violations]}))
            sys.exit(error.exit_code)
        raise
    found = capacity.capacity(loaded.settings)
    if as_json:
        click.echo(output.as_json({"good": True, **found, "warnings": list(loaded.warnings)}))
        return
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"the configuration is good\n\n{capacity.capacity_text(found)}")


@config.command("show", cls=_Configured)
@click.option("--running", is_flag=True, help="Show those of the running grid, as its master has them.")
@_with_json
def config_show(config_file: Path | None, running: bool, as_json: bool, **flags: Any) -> None:
    """Shows every setting with its value and where that comes from.

    They are those of a grid that would be started here now; with --running (and --port or --runtime-dir, where several
    grids run) those of one that runs.
    """
    from pwgrid.cli import grid_queries, output
    from pwgrid.cli.running_grid import find_grid
    from pwgrid.settings import load as module

    if running:
        grid = find_grid(flags.pop("port"), flags.pop("runtime_dir"))
        if config_file is not None or any(value is not None for value in flags.values()):
            raise click.UsageError("a running grid has its settings already: --running goes with --port, --runtime-dir")
        table = grid_queries.settings(grid)
        whose = f"# what the grid on port {grid.port} has since its start or last reload (master pid {grid.pid})"
    else:
        loaded = _load(config_file, flags)
        table, whose = module.described(loaded.settings, loaded.sources), module.whose(loaded.config_file)
    click.echo(output.as_json(table) if as_json else f"{whose}\n{output.printable(module.show(table))}")


@main.command()
@_with(_GRID_OPTIONS)
@click.option(
    *("--watch", "every_s"),
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=2.0,
    metavar="[S]",
    help="Show it again every S seconds (2), until Ctrl-C; with --json one object a line.",
)
@_with_json
def status(port: int | None, runtime_dir: str | None, every_s: float | None, as_json: bool) -> None:
    """Shows the pools and workers, sessions and memory of a grid.

    The exit code is 0 when it is healthy, 3 when it is degraded (not ready, a pool short of workers for a reason, Redis
    away, another problem), 4 when none is running, 1 when it does not answer.
    """
    from pwgrid.cli import exit_codes, grid_queries, output, watch

    if every_s is not None:
        with _until_ctrl_c():
            watch.watch_status(lambda: watch.status(port, runtime_dir), every_s, as_json=as_json)
    try:
        found = watch.status(port, runtime_dir)
    except NoGridError as none:
        none.exit_code = exit_codes.NONE_RUNNING
        raise
    for each in found:
        click.echo(output.as_json(each) if as_json else watch.status_text([each]))
    sys.exit(max(map(grid_queries.exit_code, found)))


@main.command()
@_with(_GRID_OPTIONS)
@click.option("--every", "every_s", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="S")
def top(port: int | None, runtime_dir: str | None, every_s: float) -> None:
    """Shows a grid on the whole screen: pools, workers, sessions, events, looked at every S seconds.

    Keys drain what is chosen, end a session, filter; `?` tells them all, `q` quits.
    """
    from pwgrid.cli.top.app import top

    sys.exit(top(port, runtime_dir, every_s))


@main.command()
@_with(_GRID_OPTIONS)
@click.argument("worker", required=False, shell_complete=_completing("worker"))
@click.option("--pool", metavar="NAME", shell_complete=_completing("pool"), help="Every worker of this pool.")
@click.option("--all", "everything", is_flag=True, help="Every worker.")
@click.option("--now", is_flag=True, help="End live sessions at once. A second drain of the same worker does that too.")
@click.option("--wait", is_flag=True, help="Show live sessions and the time left, until the workers are gone.")
@_with_json
def drain(
    port: int | None, runtime_dir: str | None, worker: str | None, pool: str | None, everything: bool, **how: bool
) -> None:
    """Drains WORKER, a pool or all workers.

    A draining worker gets no new sessions, its live ones go on until DRAIN_TIMEOUT, and its replacement starts at once.

    With --wait the exit code is 1 when time ran out and sessions were cut. Ctrl-C ends only the waiting.
    """
    from pwgrid.cli import drain as drain_command
    from pwgrid.cli import exit_codes
    from pwgrid.cli.progress import watching
    from pwgrid.cli.running_grid import find_grid

    if sum((worker is not None, pool is not None, everything)) != 1:
        raise click.UsageError("name one of WORKER, --pool POOL and --all")
    selection = {"worker": worker} if worker else {"pool": pool} if pool else {"all": True}
    grid = find_grid(port, runtime_dir)
    if how["wait"]:
        import pwgrid.registry.blocking_reads  # noqa: F401 - takes 0.2 s, and the figures are wanted as soon as the drain begins
    draining = drain_command.drain(grid, selection, now=how["now"])
    if not how["wait"]:
        _say(
            {"draining": draining}, "draining " + (", ".join(draining) or "nothing: there is no worker"), how["as_json"]
        )
        return
    with watching("the drain", is_silent=how["as_json"]) as shown:
        outcomes = drain_command.wait(grid, draining, shown)
    is_good = all(map(drain_command.is_good, outcomes.values()))
    if how["as_json"]:
        _say({"draining": draining, "good": is_good, "outcomes": outcomes}, "", as_json=True)
    sys.exit(exit_codes.DONE if is_good else exit_codes.FAILED)


@main.command()
@_with(_GRID_OPTIONS)
@_with_json
def reload(port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Has a running grid read its configuration file again.

    Flags and environment stay those of its start. Exits 2 when the new configuration is refused, with all that is wrong
    with it; then nothing changes.
    """
    from pwgrid.cli import changes, exit_codes
    from pwgrid.cli.running_grid import find_grid
    from pwgrid.common.errors import Refused

    try:
        done = changes.reload(find_grid(port, runtime_dir))
    except Refused as refused:
        refused.exit_code = exit_codes.REFUSED
        raise
    _say(done, changes.reload_text(done), as_json)


@main.command()
@_with(_GRID_OPTIONS)
@click.argument("pools", nargs=-1, required=True, metavar="POOL=N...", shell_complete=_completing("scale"))
@_with_json
def scale(port: int | None, runtime_dir: str | None, pools: tuple[str, ...], as_json: bool) -> None:
    """Changes the number of workers of pools until the grid restarts.

    \b
    pwgrid scale chromium=4 firefox=1
    """
    from pwgrid.cli import changes
    from pwgrid.cli.running_grid import find_grid

    figures = changes.read_scale(pools)
    wanted = changes.scale(find_grid(port, runtime_dir), figures)
    _say({"wanted": wanted}, ", ".join(f"{name} {workers}" for name, workers in wanted.items()), as_json)


@main.command()
@_with(_GRID_OPTIONS)
@click.option("--status", "wanted", type=click.Choice([each.value for each in SessionStatus]), help="Only these.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most this many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with a line for each that begins or ends, until Ctrl-C.")
@_with_json
def sessions(
    port: int | None, runtime_dir: str | None, wanted: str | None, limit: int, follow: bool, as_json: bool
) -> None:
    """Shows the latest sessions, with the reason of each end; with --follow the newest last."""
    from pwgrid.cli import grid_queries, output, tables, watch
    from pwgrid.cli.running_grid import find_grid

    grid = find_grid(port, runtime_dir)
    if follow:
        with _until_ctrl_c():
            news = grid_queries.follow_sessions(grid)
            latest = grid_queries.sessions(grid, wanted, limit)
            watch.follow_sessions(latest, news, status=wanted, as_json=as_json)
    found = grid_queries.sessions(grid, wanted, limit)
    click.echo(output.as_json(found) if as_json else tables.sessions_text(found))


@main.group()
def token() -> None:
    """Makes, lists and revokes the tokens of clients and operators.

    They are kept beside the configuration file, as salted hashes. A change counts at once. As soon as there is one, the
    grid serves nobody without a token.
    """


_TOKEN_OPTIONS: tuple[Any, ...] = (
    click.option(
        "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file beside the tokens."
    ),
    *_GRID_OPTIONS,
)


@token.command("create")
@_with(_TOKEN_OPTIONS)
@click.option("--name", required=True, help="What the token is called in sessions, status and lists.")
@click.option(
    "--role",
    type=click.Choice(["client", "operator"]),
    default="client",
    show_default=True,
    help="client: connects, sees and ends its own sessions. operator: everything.",
)
@click.option(
    "--max-sessions", type=click.IntRange(0, 100_000), default=0, help="Live sessions at once; 0: any number."
)
@click.option("--pools", default="", metavar="POOL,...", help="The only pools that it may use; without it all.")
def token_create(config_file: Path | None, port: int | None, runtime_dir: str | None, **what: Any) -> None:
    """Makes a token and prints it, this once. It is on stdout alone, so that TOKEN=$(pwgrid token create …) works."""
    from pwgrid.cli import token as tokens
    from pwgrid.tokens.tokens import Role

    where = tokens.place(config_file, port, runtime_dir)
    pools = [each.strip() for each in what["pools"].split(",") if each.strip()]
    text, is_first = tokens.create(where, what["name"], Role(what["role"]), what["max_sessions"], pools)
    click.echo(text)
    click.echo(f"pwgrid: this token of {what['name']} is shown this once; its hash is in {where.path}", err=True)
    if is_first:
        click.echo("pwgrid: it is the first one: from now on the grid serves nobody without a token", err=True)


@token.command("list")
@_with(_TOKEN_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def token_list(config_file: Path | None, port: int | None, runtime_dir: str | None, as_json: bool) -> None:
    """Shows the tokens: names, roles and limits, never a token itself."""
    from pwgrid.cli import output
    from pwgrid.cli import token as tokens

    rows = tokens.listed(tokens.place(config_file, port, runtime_dir))
    click.echo(output.as_json(rows) if as_json else tokens.text_of(rows))


@token.command("revoke")
@_with(_TOKEN_OPTIONS)
@click.argument("name")
def token_revoke(config_file: Path | None, port: int | None, runtime_dir: str | None, name: str) -> None:
    """Removes a token. Whoever has it is refused from now on; live sessions go on.

    A grid whose last token is revoked serves nobody without PWGRID_TOKEN: delete the file to have it ask for none.
    """
    from pwgrid.cli import token as tokens

    tokens.revoke(tokens.place(config_file, port, runtime_dir), name)
    click.echo(f"revoked {name}")


@main.command()
@_with(_GRID_OPTIONS)
@click.option("--force", is_flag=True, help="Replace everything, even where nothing is new.")
@click.option("--no-wait", is_flag=True, help="Return as soon as the new code has loaded.")
@_with_json
def upgrade(port: int | None, runtime_dir: str | None, **how: bool) -> None:
    """Has a running grid go on with the code, the browsers and the settings that are installed now.

    Does nothing where these are what it runs with. Shows how far it is. The proxy is replaced first, then one worker
    after the other. Live sessions go on in the old workers until RECYCLE_DRAIN_TIMEOUT; nobody waits for them. Ctrl-C
    ends only the waiting.
    """
    _replace_everything(port, runtime_dir, **how)


@main.command()
@_with(_GRID_OPTIONS)
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@_with_json
def restart(port: int | None, runtime_dir: str | None, **how: bool) -> None:
    """Replaces every process of a running grid by a new one; drops no session and refuses no client.

    The master executes itself anew and reads the configuration file again, then it is as with an upgrade.
    """
    _replace_everything(port, runtime_dir, force=True, **how)


def _replace_everything(
    port: int | None, runtime_dir: str | None, *, force: bool, no_wait: bool, as_json: bool
) -> None:
    from pwgrid.cli.changes import VersionChange
    from pwgrid.cli.progress import watching
    from pwgrid.cli.running_grid import find_grid

    change = VersionChange(find_grid(port, runtime_dir), force=force)
    is_through = not change.is_needed
    if not change.is_needed:
        done = "nothing to do: the grid runs with the code, browsers and settings that are here now (see --force)"
    elif no_wait:
        done = "the new code has loaded; the grid replaces its parts one after the other"
    else:
        with watching("the version change", is_silent=as_json) as shown:
            done = change.wait(shown)
        is_through = True
    _say({"changed": change.is_needed, "through": is_through, "message": done}, done, as_json)


@main.command()
@_with(_GRID_OPTIONS)
@click.option("--now", is_flag=True, help="End live sessions at once.")
@click.option("--no-wait", is_flag=True, help="Return as soon as it has begun.")
@_with_json
def stop(port: int | None, runtime_dir: str | None, now: bool, no_wait: bool, as_json: bool) -> None:
    """Ends a grid: no new sessions, live ones go on until DRAIN_TIMEOUT. Ctrl-C ends only the waiting."""
    from pwgrid.cli import stop as stop_command
    from pwgrid.cli.progress import watching
    from pwgrid.cli.running_grid import WithoutMasterError, find_grid

    try:
        stopping = stop_command.stop(find_grid(port, runtime_dir), now=now)
    except WithoutMasterError as error:
        if len(error.left) > 1:
            raise
        stopping = stop_command.stop_left(error.left[0], now=now)
    if not as_json:
        click.echo("".join(f"{note}\n" for note in stopping.notes), nl=False)
    if not no_wait:
        with watching("the stop", is_silent=as_json) as shown:
            stopping.wait(shown)
    if as_json or not no_wait:
        _say({"stopped": not no_wait, "notes": list(stopping.notes)}, "stopped", as_json)


@main.command()
@_with(_GRID_OPTIONS)
@click.option(
    "--session",
    metavar="ID",
    shell_complete=_completing("session"),
    help="This session: its record, and what is logged about it.",
)
@click.option("--worker", metavar="ID", shell_complete=_completing("worker"), help="Only lines that name this worker.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option(
    *("--lines", "-n"),
    type=click.IntRange(0),
    help="How many of the last lines.  [default: 100; with --session or --worker all]",
)
@_with_json
def logs(port: int | None, runtime_dir: str | None, follow: bool, as_json: bool, **what: Any) -> None:
    """Shows the log of a grid: of LOG_FILE, the journal, supervisord, or the file that its stderr is.

    With --session it also has the lines that name the session's worker while it had the session. With --json each line
    is one JSON object, which has the field `line` alone where the grid does not log JSON itself.
    """
    from pwgrid.cli import logs as logs_command

    with _until_ctrl_c():
        sys.exit(logs_command.run(port, runtime_dir, logs_command.Request(**what, follow=follow, as_json=as_json)))


@main.command()
@_with_json
def version(as_json: bool) -> None:
    """Shows the versions of pwgrid, Playwright and Python, and of your grids that run here."""
    from pwgrid.cli import grid_queries, output

    found = grid_queries.versions()
    click.echo(output.as_json(found) if as_json else output.printable(grid_queries.versions_text(found)))


@main.command("redis-cli", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def redis_cli(arguments: tuple[str, ...]) -> None:
    """Runs redis-cli on the grid's Redis. PWGRID_PORT names the grid where several run."""
    from pwgrid.cli.grid_queries import redis_cli
    from pwgrid.cli.running_grid import find_grid

    port = os.environ.get("PWGRID_PORT")
    redis_cli(find_grid(int(port) if port else None, None), arguments)


@main.group("completion")
def completion_group() -> None:
    """Completes commands, options, workers and sessions in bash, zsh and fish."""


_SHELL: tuple[Any, ...] = (click.argument("shell", required=False, type=click.Choice(("bash", "zsh", "fish"))),)


@completion_group.command("install")
@_with(_SHELL)
def completion_install(shell: str | None) -> None:
    """Installs completion for SHELL, or for your own one; may be repeated."""
    from pwgrid.cli import completion

    click.echo("\n".join(completion.install(main, completion.named_or_own(shell))))


@completion_group.command("uninstall")
@_with(_SHELL)
def completion_uninstall(shell: str | None) -> None:
    """Removes what `install` has written."""
    from pwgrid.cli import completion

    click.echo("\n".join(completion.uninstall(completion.named_or_own(shell))))


@completion_group.command("show")
@_with(_SHELL)
def completion_show(shell: str | None) -> None:
    """Prints the script that the shell has to read."""
    from pwgrid.cli import completion

    click.echo(completion.script(main, completion.named_or_own(shell)))


@main.command("help")
@click.argument("topic", nargs=-1)
@click.pass_context
def help_command(context: click.Context, topic: tuple[str, ...]) -> None:
    """Shows the help of a command, or a page of the documentation; without TOPIC, a list of these."""
    from pwgrid.cli import topics

    assert context.parent is not None
    topics.show(context.parent, main, topic)
