"""The exception that becomes an HTTP error, for upgrades and for the API."""

from pwgrid.proxy.policy.refusal_reasons import RefusalReason, reason_of


class Refusal(Exception):
    """An HTTP error. A Playwright client shows `error` to its user word for word."""

    def __init__(
        self,
        status: int,
        error: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        details: dict[str, object] | None = None,
        reason: RefusalReason | None = None,
    ) -> None:
        super().__init__(error)
        self.reason = reason or reason_of(status)
        self.status = status
        self.error = error
        self.headers = headers
        self.details = details or {}
