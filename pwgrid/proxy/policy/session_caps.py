"""How many sessions of one token, run or label key may live at once. `lua/selector.lua` keeps to it."""

from pwgrid.settings.model import Settings


def caps_of(settings: Settings, *, label: str, run: str, token: str, max_of_token: int) -> dict[str, int]:
    """Returns the caps that a client's session counts towards, by a name like `run:ci/nightly`.

    Each argument is "" for none. `max_of_token` is the token's own limit, 0 for none.
    """
    known = (
        ("token", token, max_of_token or settings.max_sessions_per_token),
        ("run", f"{token}/{run}" if run else "", settings.max_sessions_per_run),
        ("label", label.lower(), settings.max_sessions_per_label),
    )
    return {f"{what}:{name}": most for what, name, most in known if name and most}
