"""What the master makes of a child's figures: of wrong ones, of those of other versions."""

from typing import Any

import pytest

from pwgrid.master.policy import validate_reports

NAMELESS = {"name": "", "run": "", "labels": ""}


@pytest.mark.parametrize(("value", "found"), [(None, 0), (0, 0), (7, 7)])
def test_a_count_may_be_missing(value: object, found: int) -> None:
    assert validate_reports.count(value) == found


@pytest.mark.parametrize("value", [True, -1, 1.5, "7", [], {}])
def test_what_is_no_count_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="is not a count"):
        validate_reports.count(value)


@pytest.mark.parametrize(("value", "found"), [(None, None), (0, 0.0), (1.5, 1.5)])
def test_a_duration_may_be_missing(value: object, found: float | None) -> None:
    assert validate_reports.seconds(value) == found


@pytest.mark.parametrize("value", [True, -1, float("inf"), float("nan"), "7", []])
def test_what_is_no_duration_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="is no number of seconds"):
        validate_reports.seconds(value)


def test_a_sentence_is_cut_so_that_it_fits_into_a_frame_with_others() -> None:
    assert validate_reports.sentence(None, "asked") == "asked"
    assert validate_reports.sentence("why", "asked") == "why"
    assert validate_reports.sentence({"a": 1}, "asked") == "{'a': 1}"
    long = validate_reports.sentence("x" * 100_000, "asked")
    assert (len(long), long[-3:]) == (validate_reports.MOST_CHARACTERS, "x …")


@pytest.mark.parametrize("data", [{}, {"sessionId": None}, {"sessionId": 1}, {"sessionId": ""}])
def test_what_names_no_session_is_an_error(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"sessionId is .* and no id"):
        validate_reports.ident(data, "sessionId")


def test_what_a_worker_of_another_version_reports_of_its_browser_is_kept() -> None:
    assert validate_reports.launched({}) == {}
    data = {"nodePid": 1, "browserPid": 2, "browserVersion": "1", "playwrightVersion": "1.65.1", "new": [1]}
    assert validate_reports.launched(data) == data


@pytest.mark.parametrize(
    "data",
    [
        {"nodePid": "1"},
        {"nodePid": True},
        {"browserPid": -1},
        {"playwrightVersion": 1.65},
        {"browserVersion": "1" * 501},
    ],
)
def test_pids_and_versions_of_the_wrong_kind_are_an_error(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not a count|and no version"):
        validate_reports.launched(data)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "x",
        {"name": "checkout"},
        {"name": "checkout", "slots": "2"},
        {"name": "checkout", "slots": True},
        {"name": "checkout", "slots": -1},
        {"name": ["checkout"], "slots": 2},
        {"name": None, "slots": 2},
    ],
)
def test_a_holder_of_slots_that_is_none_is_left_out(wrong: object) -> None:
    right = {"name": "checkout", "run": "42", "labels": "A:Chrome", "slots": 2}
    assert validate_reports.holders([wrong, right]) == [right]


def test_holders_of_other_versions_are_understood() -> None:
    assert validate_reports.holders([{"slots": 1}]) == [{**NAMELESS, "slots": 1}]
    assert validate_reports.holders([{**NAMELESS, "slots": 1, "colour": "blue"}]) == [{**NAMELESS, "slots": 1}]


@pytest.mark.parametrize("value", [None, {}, "x", 7])
def test_nobody_is_known_where_there_is_no_list(value: object) -> None:
    assert validate_reports.holders(value) == validate_reports.waiting_by_run(value) == []


def test_who_waits_is_told_by_pool_run_and_token() -> None:
    right = {"pool": "chromium", "run": "", "token": "ci", "waiting": 3}
    assert validate_reports.waiting_by_run([{**right, "waiting": None}, {**right, "at": 1}]) == [right]


def test_the_session_that_was_kept_longest_is_told_with_its_time() -> None:
    assert validate_reports.kept_session(None) is None
    found = validate_reports.kept_session({"session": "s1", "since": 7})
    assert found == validate_reports.KeptSession("s1", 7.0)


@pytest.mark.parametrize("value", ["s1", [], {"since": 7}, {"session": "s1"}, {"session": "", "since": 7}])
def test_what_is_no_kept_session_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"is no kept session|and no id"):
        validate_reports.kept_session(value)
