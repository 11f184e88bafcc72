"""Makes the settings from file, environment and flags, with the source of each. Starts nothing and logs nothing.

`python -m pwgrid.settings.load DIRECTORY` writes grid.toml and env.example as the table of settings has them.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pwgrid.common.errors import ConfigError, Violation
from pwgrid.settings import rules, text
from pwgrid.settings.rules import Draft
from pwgrid.settings.table import SECTIONS, SETTINGS, Setting, Settings, Value
from pwgrid.settings.values import Unfit, did_you_mean, read, read_flag, read_text

__all__ = ["DEFAULT_FILE", "ConfigError", "Loaded", "Settings", "as_json", "load", "show"]

DEFAULT_FILE: Final = Path("/etc/pwgrid/grid.toml")
FILE_VARIABLE: Final = "PWGRID_CONFIG"


def _cannot_load_again() -> "Loaded":
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Loaded:
    """Good settings, the source of each ("default", a path, "environment REDIS_URL", "--port"), and the file read."""

    settings: Settings
    sources: dict[str, str]
    config_file: Path | None = None
    again: "Callable[[], Loaded]" = field(default=_cannot_load_again, repr=False, compare=False)
    """Reads the same file again, with the same environment and flags. Raises ConfigError."""


def load(config_file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Loaded:
    """Settings from `config_file` (None: the one that $PWGRID_CONFIG names, else /etc/pwgrid/grid.toml if it exists).

    Environment beats file, `flags` (by name of the setting; None is not given) beat both. Raises ConfigError with all
    violations at once, KeyError for a flag that is no setting.
    """
    draft = Draft()
    path, named_by = _find_file(config_file, environ)
    file_is_known = path is None or _put_file(draft, path, named_by)
    for setting in SETTINGS.values():
        written = environ.get(setting.environment, "").strip()
        if written:
            _put(draft, setting, written, f"environment {setting.environment}", read_text)
    for name, given in flags.items():
        setting = SETTINGS[name]
        if given is not None and given != ():
            _put(draft, setting, given, setting.flag, read_flag)
    if file_is_known:  # else rules would be broken by what a file says that could not be read
        rules.derive(draft)
        rules.apply_all(draft)
    if draft.violations:
        raise ConfigError(draft.violations)
    values: dict[str, Any] = dict(draft.values)
    return Loaded(Settings(**values), draft.sources, path, partial(load, config_file, dict(environ), dict(flags)))


def show(loaded: Loaded) -> str:
    """A table for people: name, value, unit, source. Secrets are masked."""
    return text.show(loaded.settings, loaded.sources)


def as_json(loaded: Loaded) -> str:
    """JSON for machines: `{name: {"value", "unit", "source"}}`. Secrets are masked."""
    return text.as_json(loaded.settings, loaded.sources)


def write_files(directory: Path) -> None:
    """Writes grid.toml and env.example with all defaults into `directory`."""
    (directory / "grid.toml").write_text(text.toml_file(), encoding="utf-8")
    (directory / "env.example").write_text(text.environment_file(), encoding="utf-8")


def _put(draft: Draft, setting: Setting, written: object, source: str, reader: Callable[[Setting, Any], Value]) -> None:
    try:
        draft.put(setting, reader(setting, written), source)
    except Unfit as rule:
        draft.refuse(setting, written, str(rule), source)


def _find_file(config_file: Path | None, environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """The file to read, and who named it."""
    if config_file is not None:
        return config_file, "--config"
    if named := environ.get(FILE_VARIABLE, "").strip():
        return Path(named), f"environment {FILE_VARIABLE}"
    return (DEFAULT_FILE, "the default place") if _may_exist(DEFAULT_FILE) else (None, "")


def _may_exist(path: Path) -> bool:
    """False when there is certainly no such file; one that may not be looked at is for the reader to complain about."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _put_file(draft: Draft, path: Path, named_by: str) -> bool:
    """Puts what the file says. False when the file cannot be read at all."""
    import tomllib  # most grids have no file

    try:
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        fault = "is not UTF-8"
    except RecursionError:
        fault = "is nested too deeply"
    except ValueError as error:  # TOMLDecodeError, but also numbers with thousands of digits
        fault = f"is not TOML: {error}"
    else:
        _put_sections(draft, table, str(path))
        return True
    draft.violations.append(Violation("config", repr(str(path)), fault, named_by))
    return False


def _put_sections(draft: Draft, table: Mapping[str, object], source: str) -> None:
    for section, content in table.items():
        if section not in SECTIONS:
            draft.violations.append(Violation(_key(section), "", _unknown_section(section), source))
        elif not isinstance(content, dict):
            draft.violations.append(Violation(_key(section), "", f"must be a section: [{section}]", source))
        else:
            for name, written in content.items():
                if name in SETTINGS and SETTINGS[name].section == section:
                    _put(draft, SETTINGS[name], written, source, read)
                else:  # its value is not shown: it might be a secret with a mistyped name
                    place = f"{_key(name)} in [{section}]"
                    draft.violations.append(Violation(place, "", _unknown_setting(name), source))


def _unknown_section(section: str) -> str:
    if section in SETTINGS:
        return _unknown_setting(section)
    return "unknown section" + did_you_mean(section, tuple(SECTIONS))


def _unknown_setting(name: str) -> str:
    if name in SETTINGS:
        return f"belongs into the section [{SETTINGS[name].section}]"
    return "unknown setting" + did_you_mean(name, tuple(SETTINGS))


def _key(name: str) -> str:
    return name if name.isprintable() and name else repr(name)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
