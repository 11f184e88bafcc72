"""Where clients find the grid. Opens nothing."""

from pwgrid.settings.model import Settings

_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def base_url(settings: Settings) -> str:
    """The grid's endpoint, ws://host:port, as clients may use it: the advertised host, else the one it listens on."""
    host = settings.advertised_host or _REACHABLE.get(settings.host, settings.host)
    return f"ws://[{host}]:{settings.port}" if ":" in host else f"ws://{host}:{settings.port}"
