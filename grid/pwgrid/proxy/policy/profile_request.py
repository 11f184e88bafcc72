"""Decides about the profile that a client asks for: a browser's state on disk, kept from one session to the next."""

from __future__ import annotations

from datetime import UTC, datetime

from pwgrid.common.profile_names import NAME, NAME_RULE, Profile, ProfileUse
from pwgrid.proxy.policy.access import Identity
from pwgrid.proxy.policy.refusal import Refusal


def asked_profile(said: str, setting: str, identity: Identity, *, is_cdp: bool) -> Profile | None:
    """Returns the profile that the client's browser is to start with; None where it asks for none. `said` is what the
    client says, `setting` is PROFILES. Each token has names of its own. Raises Refusal."""
    if not said:
        return None
    if setting == "off" or (setting == "auto" and not identity.name):
        why = "PROFILES=off" if setting == "off" else "it asks nobody for a token, so all would share them"
        raise Refusal(
            403,
            f"profile: this grid keeps no profiles ({why}): leave profile out, or have its operator set PROFILES=on",
        )
    if not NAME.fullmatch(said):
        raise Refusal(400, f"profile: use {NAME_RULE}")
    if not is_cdp:
        raise Refusal(
            400,
            "profile: a client of Playwright's connect() makes contexts of its own, which have nothing of a profile: "
            "connect by connect_over_cdp() and use browser.contexts[0], or leave profile out and bring storageState",
        )
    return Profile(identity.name, said)


def not_with_lease() -> Refusal:
    """400: a client with a lease asks for a profile."""
    return Refusal(
        400,
        "profile: a lease has the profile that it was borrowed with (profile in POST /session/borrow): leave it out "
        "here, or connect to /cdp?profile=... without a lease",
    )


def in_use(profile: Profile, use: ProfileUse) -> Refusal:
    """409: another session or lease has the profile. Its owner is the same, so its client may see which."""
    called = "".join(f", {what} {text}" for what, text in (("name", use.name), ("run", use.run)) if text)
    since = datetime.fromtimestamp(use.since, UTC)
    join = "" if use.is_lease else f" join it at /devtools/browser/{use.session},"
    return Refusal(
        409,
        f"profile {profile.name} is in use by {use.holder}{called}, since {since:%Y-%m-%d %H:%M:%S} UTC: "
        f"wait for its end,{join} or use another profile",
        details={
            "profile": profile.name,
            "lease" if use.is_lease else "session": use.session,
            "since": use.since,
            "name": use.name or None,
            "run": use.run or None,
        },
    )


def too_many(most: int) -> Refusal:
    """409: the client's token has as many profiles as it may."""
    return Refusal(
        409,
        f"there are {most} profiles of this token already (PROFILES_MAX={most}): use one of them, or have the grid's "
        "operator remove some (pwgrid profile remove) or raise it",
    )
