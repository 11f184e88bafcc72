"""How many sessions of one token may live: selector.lua counts them, and no end can be missed."""

from tests.lua.model import LuaGrid


def of(token: str, most: int) -> tuple[str, ...]:
    return ("token", token, f"max:token:{token}", str(most))


def test_a_token_has_no_more_sessions_than_it_may(grid: LuaGrid) -> None:
    grid.register("w1")
    assert [grid.select(f"s{n}", extra=of("ci", 2)) for n in range(4)] == ["w1", "w1", None, None]
    assert grid.select("t1", extra=of("other", 2)) == "w1"
    assert grid.select("u1") == "w1"
    record = grid.client.hgetall(f"{grid.prefix}session:s0")
    assert record["token"] == "ci"
    assert not any(name.startswith("max:") for name in record)


def test_whatever_ends_a_session_makes_room(grid: LuaGrid) -> None:
    grid.register("w1")
    for end in (
        lambda id_: grid.release(id_, "completed"),
        grid.rollback,
        lambda _id: grid.unregister(),
        lambda id_: grid.client.delete(f"{grid.prefix}session:{id_}"),
    ):
        grid.register("w1")
        assert grid.select("first", extra=of("ci", 1)) == "w1"
        assert grid.select("second", extra=of("ci", 1)) is None
        end("first")
        grid.register("w1")
        assert grid.select("second", extra=of("ci", 1)) == "w1"
        grid.release("second", "completed")
        for key in ("first", "second"):
            grid.client.delete(f"{grid.prefix}session:{key}")


def test_who_has_as_many_as_it_may_is_told_when_a_slot_comes_free(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.select("s1", extra=of("ci", 1))
    assert grid.client.get(f"{grid.prefix}slots:wanted:chromium") is None
    assert grid.select("s2", extra=of("ci", 1)) is None
    assert grid.client.get(f"{grid.prefix}slots:wanted:chromium") == "1"


def test_it_is_told_so_also_by_a_session_in_another_pool(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.register("f1", browser="firefox")
    grid.select("s1", browser="firefox", extra=of("ci", 1))
    assert grid.select("s2", extra=of("ci", 1)) is None
    assert grid.client.get(f"{grid.prefix}slots:wanted:firefox") == "1"


def test_a_selection_that_is_asked_again_counts_once(grid: LuaGrid) -> None:
    grid.register("w1")
    assert grid.select("s1", extra=of("ci", 1)) == "w1"
    assert grid.select("s1", extra=of("ci", 1)) == "w1"


def test_a_token_that_nobody_uses_any_more_leaves_nothing(grid: LuaGrid) -> None:
    grid.register("w1")
    grid.select("s1", extra=of("ci", 1))
    assert grid.client.ttl(f"{grid.prefix}sessions:of:token:ci") > 0
