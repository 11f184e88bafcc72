"""Reads the file of tokens again whenever it has changed, and replaces it as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel, ValidationError

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.errors import GridError
from pwgrid.tokens.tokens import NO_TOKENS, Token, Tokens

log = structlog.get_logger()

MODE: Final = 0o600
_MOST_BYTES: Final = 16 << 20


class _Content(BaseModel):
    tokens: tuple[Token, ...]


class TokenFile:
    """The tokens in the file at `path`. While the file exists and cannot be read, no token is valid. `is_logged`: the
    log tells of each reading."""

    def __init__(self, path: Path, *, is_logged: bool = True) -> None:
        self._path = str(path)  # stat() would convert a Path for each client
        self._log = log.info if is_logged else log.debug
        self._seen: tuple[int, ...] | None = None
        self._tokens = NO_TOKENS

    def tokens(self) -> Tokens:
        """Returns the tokens that the file has now. Called for each client: costs one stat() if nothing has changed."""
        seen: tuple[int, ...] = ()
        try:
            status = os.stat(self._path)
            # A replaced file has another inode; an edited one has another time.
            seen = (status.st_ino, status.st_dev, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if seen != self._seen:
                self._tokens, self._seen = read(Path(self._path)), seen
                self._log("tokens_read", path=self._path, tokens=len(self._tokens.all))
        except FileNotFoundError:
            self._tokens, self._seen = NO_TOKENS, None
        except OSError as error:  # perhaps only for now (no descriptor is free): it is tried again for the next client
            self._refuse_all((error.errno or 0,), error)
        except ValueError as error:
            self._refuse_all(seen, error)
        return self._tokens

    def _refuse_all(self, seen: tuple[int, ...], error: Exception) -> None:
        if seen != self._seen:
            self._tokens, self._seen = Tokens(are_known=False), seen
            log.error("tokens_unreadable", path=self._path, error=_why(error), so="all tokens in it are refused")


def read(path: Path) -> Tokens:
    """Reads the tokens of a file. Raises OSError, or ValueError for content of another form."""
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES)
    try:
        return Tokens(_Content.model_validate_json(content).tokens)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"is no file of tokens: {': '.join(map(str, (*first['loc'], first['msg'])))}") from None


@contextlib.contextmanager
def changing(path: Path, owner: int | None = None) -> Iterator[dict[str, Token]]:
    """Yields the tokens by name, and writes them into the file when the block ends. A lock admits one block at a time.

    If root runs this, the file gets the user id `owner`, or keeps the one that it has. Raises GridError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            tokens = {token.name: token for token in load(path).all}
            yield tokens
            content = _Content(tokens=tuple(tokens.values())).model_dump_json(by_alias=True, indent=2)
            if os.geteuid() != 0:
                uid = -1
            elif owner is not None:
                uid = owner
            else:
                uid = path.stat().st_uid if path.exists() else 0
            write_whole(path, f"{content}\n".encode(), mode=MODE, uid=uid, durable=True)
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, ValueError) as error:
        raise GridError(f"{path} {_why(error)}") from None


def load(path: Path) -> Tokens:
    """Reads the tokens of a file; NO_TOKENS if there is no such file. Raises GridError."""
    try:
        return read(path)
    except FileNotFoundError:
        return NO_TOKENS
    except (OSError, ValueError) as error:
        raise GridError(f"{path} {_why(error)}") from None


def _why(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"cannot be read or written: {error.strerror or error}"
