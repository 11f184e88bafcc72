"""How many sessions of one token, run or label key may live at once. `lua/selector.lua` keeps to it."""

from pwgrid.common.wording import counted
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import RETRY_AFTER_QUEUE_S, RETRY_AFTER_S, Refusal, RefusalReason
from pwgrid.settings.model import Settings


def caps_of(settings: Settings, identity: Identity, *, label: str, run: str) -> dict[str, int]:
    """Returns the caps that a client's session counts towards, by a name like `run:ci/nightly`.

    `label` and `run` may be empty.
    """
    token = identity.name
    known = (
        ("token", token, identity.max_sessions or settings.max_sessions_per_token),
        ("run", f"{token}/{run}" if run else "", settings.max_sessions_per_run),
        ("label", label.lower(), settings.max_sessions_per_label),
    )
    return {f"{what}:{name}": most for what, name, most in known if name and most}


def cap_reached(cap: str, most: int, in_vain: Refusal) -> Refusal:
    """429 for a token, 503 for a run or label key that has as many live sessions as it may have. `in_vain` is what the
    queue says of the wait."""
    what, _, name = cap.partition(":")
    if what == "token":  # its limit is reached, not the grid's
        return Refusal(
            429,
            f"the token {name} has {most} live sessions, which is its limit: end one, or have an operator make a token "
            "with another --max-sessions",
            retry_after_s=RETRY_AFTER_S,
            details={"maxSessions": most},
        )
    shown = name.partition("/")[2] if what == "run" else name
    return Refusal(
        503,
        f"{what} {shown!r} has {counted(most, 'session')} already, as many as it may have at once: "
        "end some of them first",
        retry_after_s=RETRY_AFTER_QUEUE_S,
        reason=RefusalReason.CAP_REACHED,
        details={**in_vain.details, "reason": f"{what} cap reached"},
    )
