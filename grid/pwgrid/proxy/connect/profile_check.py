"""Whether a client may have the profile that it asks for: before it takes a slot, and when a worker gives it none."""

from __future__ import annotations

import asyncio
from typing import Final

from pwgrid.common.errors import GridError
from pwgrid.common.profile_names import Profile, ProfileInUse, TooManyProfiles
from pwgrid.profiles.paths import profiles_directory
from pwgrid.profiles.store import ProfileStore
from pwgrid.proxy.policy.profile_request import in_use, too_many
from pwgrid.proxy.policy.refusal import no_capacity
from pwgrid.settings.model import Settings

SAVED_S: Final = 15.0
"""How long a client waits for the end of the last session, whose client has just gone."""

_HEARD_S: Final = 0.25
"""How long it takes at most until it is known that the last session ends: its client may have gone this very moment."""

_POLL_INTERVAL_S: Final = 0.05


async def check_profile(settings: Settings, profile: Profile) -> None:
    """Returns if nobody has the profile now, perhaps after a while. Raises Refusal."""
    loop = asyncio.get_running_loop()
    heard, saved = loop.time() + _HEARD_S, loop.time() + SAVED_S
    while True:
        try:
            await asyncio.to_thread(_check, settings, profile)
            return
        except ProfileInUse as error:
            if loop.time() >= (saved if error.use.is_ending else heard):
                raise in_use(profile, error.use) from None
        except TooManyProfiles:
            raise too_many(settings.profiles_max) from None
        except (GridError, OSError) as error:
            sentence = error.strerror if isinstance(error, OSError) else str(error)
            raise no_capacity(f"the grid cannot read its profiles: {sentence}") from None
        await asyncio.sleep(_POLL_INTERVAL_S)  # other processes change the files


def _check(settings: Settings, profile: Profile) -> None:
    ProfileStore(profiles_directory(settings)).check(profile, settings.profiles_max)
