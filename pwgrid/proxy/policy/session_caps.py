"""How many sessions of one token, run or label key may live at once. `lua/selector.lua` keeps to it."""

from pwgrid.proxy.policy.access import Identity
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
