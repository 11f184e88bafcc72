"""The source of browsers for one session alone (own_browsers.cjs): which are warm, who gets which, what is bounded."""

import json
import subprocess
from typing import Any

from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER

NODE, _ = compute_driver_executable()
MODULE = json.dumps(str(LAUNCHER.with_name("units") / "own_browsers.cjs"))

HEAD = """
    const { OwnBrowsers } = require(MODULE);
    let started = 0; // launches that have begun
    const launches = []; // { options, done(), fail() } of those under way
    const ended = [], tried = [], told = [];
    let firstTried, opensPage = () => {};
    const isTried = new Promise(resolve => { firstTried = resolve; });
    const sourceOf = ({ warm, most, warmForMs }) => new OwnBrowsers({
        launch: options => new Promise((resolve, reject) => {
            const unit = { number: ++started, hasEnded: false, end: () => { ended.push(unit.number); } };
            launches.push({ options, done: () => resolve(unit), fail: () => reject(new Error('no browser')) });
        }),
        warmUp: async unit => { tried.push(unit.number); firstTried(); return opensPage(); },
        quietMs: 1, refillMs: 0, retryMs: 1,
        warm, most, warmForMs, onCannotLaunch: error => told.push(error.message),
    });
    const settled = () => new Promise(resolve => setTimeout(resolve, 3)); // longer than any timer of the source
    const launchAll = async () => {
        while (launches.length) {
            launches.shift().done();
            await settled();
        }
    };
"""


def run(script: str) -> Any:
    """What the script returns, as JSON."""
    whole = (
        HEAD.replace("MODULE", MODULE) + f"(async () => {{ {script} }})().then(it => console.log(JSON.stringify(it)));"
    )
    done = subprocess.run([NODE, "-e", whole], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_a_warm_one_is_handed_out_and_another_one_takes_its_place() -> None:
    warm, unit, then = run("""
        const source = sourceOf({ warm: 2, most: 5 });
        source.fill();
        await launchAll();
        const warm = source.warm.map(each => each.number);
        const { number } = await source.acquire('a', {}).then(() => source.take('a'));
        await settled();
        await launchAll();
        return [warm, number, source.warm.map(each => each.number)];
    """)
    assert warm == [1, 2]
    assert unit in warm
    assert len(then) == 2
    assert 3 in then


def test_nothing_is_left_of_a_browser_that_was_never_tried_and_has_ended() -> None:
    assert (
        run("""
            require('node:v8').setFlagsFromString('--expose-gc');
            const collect = require('node:vm').runInNewContext('gc');
            const source = sourceOf({ warm: 1, most: 2 });
            source.quietMs = 1e6;
            source.fill();
            await launchAll();
            await source.acquire('a', {});
            const unit = new WeakRef(source.take('a'));
            source.release(unit.deref());
            await settled();
            collect();
            return unit.deref() === undefined;
        """)
        is True
    )


def test_only_a_few_start_at_once_and_who_waits_gets_the_first_that_is_ready() -> None:
    begun, served, tried = run("""
        const source = sourceOf({ warm: 0, most: 9 });
        const served = [];
        for (const id of ['a', 'b', 'c', 'd', 'e'])
            source.acquire(id, {}).then(() => served.push(id));
        await settled();
        const begun = started;
        await launchAll();
        const waits = setInterval(() => {}, 1000);
        await isTried;
        clearInterval(waits);
        return [begun, served, tried];
    """)
    assert begun == 4
    assert served == ["a", "b", "c", "d", "e"]
    assert tried == [6]  # whoever waits gets it untried; the last one is to be warm


def test_one_that_is_to_be_otherwise_is_launched_for_its_session() -> None:
    options, number = run("""
        const source = sourceOf({ warm: 1, most: 5 });
        source.fill();
        await launchAll();
        const acquired = source.acquire('a', { args: ['--lang=de'] });
        await settled();
        const { options } = launches[0];
        await launchAll();
        await acquired;
        return [options, source.take('a').number];
    """)
    assert options == {"args": ["--lang=de"]}
    assert number == 2


def test_nobody_has_more_than_the_most_and_the_next_gets_the_place_of_one_that_ends() -> None:
    before, after = run("""
        const source = sourceOf({ warm: 0, most: 1 });
        const served = [];
        source.acquire('a', {}).then(() => served.push('a'));
        source.acquire('b', {}).then(() => served.push('b'));
        await settled();
        await launchAll();
        const before = [...served];
        source.release(source.take('a'));
        await settled();
        await launchAll();
        return [before, served];
    """)
    assert before == ["a"]
    assert after == ["a", "b"]


def test_what_nobody_comes_for_is_ended_also_while_it_is_being_launched() -> None:
    ends, places = run("""
        const source = sourceOf({ warm: 0, most: 5 });
        source.acquire('a', {});
        const late = source.acquire('b', { args: [] , slowMo: 1 });
        await settled();
        source.giveBack('b');
        await launchAll();
        await late;
        source.giveBackAll();
        return [ended, source.places];
    """)
    assert sorted(ends) == [1, 2]
    assert places == 5


def test_who_gives_up_leaves_its_line_and_holds_up_nobody_behind_it() -> None:
    """Of those who wait for a place, for the next browser, and for the turn of a start."""
    served, failed, begun, places = run("""
        const source = sourceOf({ warm: 0, most: 6 });
        const served = [], failed = [];
        const ask = (id, options) => source.acquire(id, options).then(() => served.push(id), () => failed.push(id));
        for (const id of ['a', 'b', 'c', 'd', 'start'])
            ask(id, { slowMo: 1 });
        for (const id of ['next', 'place', 'e'])
            ask(id, {});
        await settled();
        for (const id of ['start', 'next', 'place'])
            source.giveBack(id);
        await settled();
        const asked = [...failed].sort();
        await launchAll();
        source.close();
        for (const id of ['a', 'b', 'c', 'd', 'e'])
            source.release(source.take(id));
        return [served, asked, started, source.places];
    """)
    assert served == ["a", "b", "c", "d", "e"]
    assert failed == ["next", "place", "start"]
    assert begun == 6  # those of the five, and one that is to be warm
    assert places == 6


def test_a_session_that_asks_again_gets_one_browser_however_often_it_has_given_up() -> None:
    ends, places = run("""
        const source = sourceOf({ warm: 0, most: 5 });
        const first = source.acquire('a', { slowMo: 1 }).catch(() => {});
        await settled();
        source.giveBack('a');
        const again = source.acquire('a', { slowMo: 1 });
        await launchAll();
        await Promise.all([first, again]);
        return [ended, source.places];
    """)
    assert ends == [1]
    assert places == 4


def test_one_whose_browser_ends_is_replaced_and_given_to_nobody() -> None:
    taken, warm = run("""
        const source = sourceOf({ warm: 1, most: 5 });
        source.fill();
        await launchAll();
        source.ended(source.warm[0]);
        await launchAll();
        const warm = source.warm.map(each => each.number);
        await source.acquire('a', {});
        source.ended([...source.inUse][0]);
        return [source.take('a') ?? null, warm];
    """)
    assert taken is None
    assert warm == [2]


def test_who_asks_hears_that_a_start_failed() -> None:
    said, places = run("""
        const source = sourceOf({ warm: 0, most: 5 });
        const said = source.acquire('a', { args: [] , slowMo: 1 }).catch(error => error.message);
        await settled();
        launches.forEach(each => each.fail());
        return [await said, source.places];
    """)
    assert (said, places) == ("no browser", 5)


def test_starts_that_fail_again_and_again_end_the_source_unless_one_is_in_use() -> None:
    failures, failures_with_one_in_use = run("""
        const counted = async ({ inUse }) => {
            const source = sourceOf({ warm: 2, most: 5 });
            if (inUse)
                source.inUse.add({});
            source.fill();
            launches.splice(0).forEach(each => each.fail());
            do
                await settled();
            while (source.retry);
            const before = told.length;
            source.fill();
            launches.splice(0).forEach(each => each.fail());
            await settled();
            source.close();
            return [before, told.length].map(each => Math.min(each, 1));
        };
        const without = await counted({ inUse: false });
        told.length = 0;
        return [without, await counted({ inUse: true })];
    """)
    assert failures == [0, 1]
    assert failures_with_one_in_use == [0, 0]


def test_browsers_that_open_no_page_are_replaced_ever_more_slowly_and_end_the_source_as_starts_that_fail_do() -> None:
    told, waits, ended, started = run("""
        opensPage = () => { throw new Error('no page'); };
        console.error = () => {};
        const source = sourceOf({ warm: 1, most: 5 });
        const waits = [];
        const { setTimeout } = global;
        global.setTimeout = (callback, ms) => {
            if (callback.toString().includes('retry'))
                waits.push(ms);
            return setTimeout(callback, ms);
        };
        source.fill();
        while (!told.length) {
            await settled();
            launches.splice(0).forEach(each => each.done());
        }
        source.close();
        return [told, waits, ended, started];
    """)
    assert told == ["no page"]
    assert waits == [1, 2]
    assert ended == [1, 2, 3]
    assert started == 3


def test_while_the_host_is_short_of_memory_only_sessions_have_browsers_started() -> None:
    held, served, after = run("""
        const source = sourceOf({ warm: 2, most: 5 });
        source.hold(true);
        source.fill();
        const held = started;
        const served = source.acquire('a', {}).then(() => source.take('a').number);
        await settled();
        await launchAll();
        await settled();
        const number = await served;
        const after = started;
        source.hold(false);
        await launchAll();
        return [[held, after], number, source.warm.length];
    """)
    assert held == [0, 1]
    assert served == 1
    assert after == 2


def test_where_none_is_always_warm_one_stays_so_after_the_first_was_asked_for() -> None:
    before, after, closed = run("""
        const source = sourceOf({ warm: 0, most: 5 });
        source.fill();
        const before = started;
        await Promise.all([source.acquire('a', {}), settled().then(launchAll)]);
        await launchAll();
        const after = source.warm.length;
        source.close();
        return [before, after, source.warm.length];
    """)
    assert (before, after, closed) == (0, 1, 0)


def test_it_is_ended_when_none_was_asked_for_that_long_and_none_is_made_for_those_who_want_another() -> None:
    warm, cooled, other = run("""
        const source = sourceOf({ warm: 0, most: 5, warmForMs: 3_600_000 });
        await Promise.all([source.acquire('a', {}), settled().then(launchAll)]);
        await launchAll();
        const [warm] = source.warm;
        const isEnded = new Promise(resolve => { warm.end = () => resolve(warm.number); });
        source.warmForMs = 0;
        source.asked(); // for the last time
        const awake = setInterval(() => {}, 1000); // no timer of the source keeps Node awake
        const cooled = [await isEnded, source.warm.length];
        clearInterval(awake);
        await Promise.all([source.acquire('b', { slowMo: 1 }), settled().then(launchAll)]);
        await settled();
        return [warm.number, cooled, launches.length];
    """)
    assert warm == 2
    assert cooled == [2, 0]
    assert other == 0
