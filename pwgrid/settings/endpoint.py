"""The address at which clients find the grid."""

from pwgrid.settings.model import Settings

_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def reachable(host: str) -> str:
    """An address at which this host reaches a listener on `host`, which may mean all addresses."""
    return _REACHABLE.get(host, host)


def base_url(settings: Settings) -> str:
    """The grid's endpoint for clients, ws://host:port: with the advertised host, else the one it listens on."""
    host = settings.advertised_host or reachable(settings.host)
    return f"ws://[{host}]:{settings.port}" if ":" in host else f"ws://{host}:{settings.port}"
