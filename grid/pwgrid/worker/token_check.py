"""Whether the token that a client or borrower came with is still one of the grid's. The worker looks itself, so that a
lease ends with its token also while the proxy or the master is frozen."""

from __future__ import annotations

from pathlib import Path

from pwgrid.tokens.file import TokenFile
from pwgrid.tokens.tokens import OPERATORS_TOKEN


class TokenCheck:
    """Knows the tokens of `pwgrid token` in `file` (None: the grid takes none of them), and that of the settings."""

    def __init__(self, file: Path | None) -> None:
        self._file = TokenFile(file, is_logged=False) if file is not None else None
        self.operators: str | None = None
        """The id of the token of the settings, which the master tells; None before."""

    def has(self, token_id: str) -> bool | None:
        """Whether this token is there; None while that cannot be told. Without an id the grid asked for no token."""
        if token_id.startswith(OPERATORS_TOKEN):
            return self.operators in (None, token_id)
        if not token_id or self._file is None:
            return True
        tokens = self._file.tokens()
        return tokens.has(token_id) if tokens.are_known else None
