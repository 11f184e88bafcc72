"""Decides which browsers get a lower priority, since they take more than their share of the processors while others
wait, and when they get it back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

WAITS: Final = 0.2
"""A browser wants more than it gets if a main thread of it waits for a processor for this part of the time."""
TAKES_MORE: Final = 1.5
TAKES_LESS: Final = 0.7
"""Parts of its share. Between them its priority stays as it is: else it would go up and down all the time."""
LOOKS: Final = 3
"""So many looks in a row a browser has to take more, or less: a page that loads takes two processors for a second."""
LOOKS_FOR_GOOD: Final = 10
STEPS_FOR_GOOD: Final = 7
"""Where a priority that is lowered stays so until the browser ends, it takes so many looks, and this much more: about
four times as much as its share, in relation to what others get."""
LEAST_CORES: Final = 0.1
"""Who takes less than this and waits for no more harms nobody; and the kernel counts in hundredths of a second."""
MOST_STEPS: Final = 10
"""By so many nice values a priority changes in one look at the most."""
WORST: Final = 19
WEIGHT_OF_STEP: Final = 1.25
"""One nice value more divides a thread's part of a processor by this (kernel/sched/core.c, sched_prio_to_weight)."""


@dataclass(frozen=True, slots=True)
class BrowserUse:
    """What one browser, with all its processes, did since the last look: how many processors it used, for which part
    of the time a main thread of it waited for one, and its nice value. `is_shared`: several sessions have it."""

    cores: float
    waits: float
    nice: int = 0
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class _More:
    """In how many looks a browser has taken more than its share, which was `share` in the last of them. Looks in which
    nobody waits count neither way while it takes as much."""

    looks: int = 0
    share: float = math.inf
    is_now: bool = True


_NO_LOOKS: Final = _More()


@dataclass(slots=True)
class ProcessorShares:
    """What each browser takes, over several looks. `usual` is the nice value of the grid's processes, and so of a
    browser at its start. `may_restore`: the kernel allows to lower a nice value again. Where it does not, a browser
    keeps what it has got until it ends: so it takes longer to get it, and one that sessions share gets none."""

    usual: int
    may_restore: bool
    _more: dict[int, _More] = field(default_factory=dict)
    _less: dict[int, int] = field(default_factory=dict)
    """For how many looks in a row each browser has taken less than its share."""

    def observe(self, browsers: Mapping[int, BrowserUse], *, is_short: bool) -> dict[int, int]:
        """Takes a look, by the pids of the browsers; `is_short`: something waits for processors. Returns the nice
        values that change."""
        share = fair_share(browsers.values()) if is_short else math.inf
        capacity = sum(each.cores for each in browsers.values())
        self._count(browsers, share, is_anyone_waiting=any(_is_waiting(each) for each in browsers.values()))
        counted = [pid for pid in browsers if self._is_time(pid)]
        steps = {pid: steps_to(_share_of(browsers[pid], share), browsers[pid].cores, capacity) for pid in counted}
        wanted = {pid: browsers[pid].nice + each for pid, each in steps.items() if self._may(browsers[pid], each)}
        bounded = {pid: max(self.usual, min(WORST, nice)) for pid, nice in wanted.items()}
        return {pid: nice for pid, nice in bounded.items() if nice != browsers[pid].nice}

    def _is_time(self, pid: int) -> bool:
        """Whether a browser takes more now, and has for long enough, or has taken less for long enough."""
        more = self._more.get(pid, _NO_LOOKS)
        looks = LOOKS if self.may_restore else LOOKS_FOR_GOOD
        return (more.is_now and more.looks >= looks) or self._less.get(pid, 0) >= LOOKS

    def _may(self, browser: BrowserUse, steps: int) -> bool:
        return self.may_restore or (steps >= STEPS_FOR_GOOD and not browser.is_shared)

    def _count(self, browsers: Mapping[int, BrowserUse], share: float, *, is_anyone_waiting: bool) -> None:
        more = {}
        for pid, each in browsers.items():
            before = self._more.get(pid, _NO_LOOKS)
            if is_anyone_waiting and each.cores > max(LEAST_CORES, share * TAKES_MORE):
                more[pid] = _More(before.looks + 1, share)
            elif not is_anyone_waiting and each.cores > before.share * TAKES_MORE:
                more[pid] = replace(before, is_now=False)  # a page that waits may load only now and then
        self._more = more
        less = (pid for pid, each in browsers.items() if each.cores < _share_of(each, share) * TAKES_LESS)
        self._less = {pid: self._less.get(pid, 0) + 1 for pid in less}


def _share_of(browser: BrowserUse, share: float) -> float:
    """Where all browsers are idle while others keep the host busy, `share` is next to nothing: who is idle has not
    taken all of it."""
    return math.inf if browser.cores < LEAST_CORES and not _is_waiting(browser) else share


def _is_waiting(browser: BrowserUse) -> bool:
    return browser.waits >= WAITS


def fair_share(browsers: Collection[BrowserUse]) -> float:
    """Returns how many processors a browser may use at the most so that none that waits gets less than another: what
    they got together, divided (max-min fairness). Nobody takes more than it while nobody waits."""
    left = sum(each.cores for each in browsers)
    wanted = sorted(math.inf if _is_waiting(each) else each.cores for each in browsers)
    for number, cores in enumerate(wanted):
        share = left / (len(wanted) - number)
        if cores >= share:
            return share
        left -= cores
    return max(wanted, default=math.inf)  # by rounding


def steps_to(share: float, cores: float, capacity: float) -> int:
    """Returns by how many nice values a browser's priority has to change until it uses `share` of `capacity`
    processors where it uses `cores`, if it wants more: at least one, up or down, and at most MOST_STEPS. Threads get
    processors by their weights, so that the ratio of its use to that of all others goes with its weight."""
    if share >= capacity:
        return -MOST_STEPS
    steps = math.log(_to_others(cores, capacity) / _to_others(share, capacity), WEIGHT_OF_STEP)
    return min(MOST_STEPS, max(1, math.ceil(steps))) if cores > share else max(-MOST_STEPS, min(-1, math.floor(steps)))


def _to_others(cores: float, capacity: float) -> float:
    least = max(capacity, LEAST_CORES) / 100
    return max(cores, least) / max(capacity - cores, least)
