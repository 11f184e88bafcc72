"""Profiles on disk. Each is one file (tar), which is replaced as a whole: who reads it finds one that was saved whole.

    <directory>/<owner>/<name>.tar   as it was saved last
    <directory>/<owner>/<name>.json  the session that has it, with processes: when all of them have ended nobody has it

A session works with a copy of its own. So whatever kills its browser, its worker or the grid spoils nothing here, and a
profile is not in use for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final

import orjson

from pwgrid.common.atomic_write import write_whole
from pwgrid.common.profile_names import NAME, NotSaved, Profile, ProfileInUse, ProfileUse, TooManyProfiles
from pwgrid.runtime.child_files import boot_id
from pwgrid.runtime.process_identity import create_time

_MIB: Final = 1 << 20
_BLOCK: Final = tarfile.BLOCKSIZE
_NO_TOKEN: Final = "-"
"""The directory of profiles without an owner; no token can have this name."""

_LEFT_OUT: Final = frozenset(
    {
        *("Cache", "Code Cache", "ScriptCache", "GPUCache", "GPUPersistentCache", "DawnCache", "DawnGraphiteCache"),
        *("DawnWebGPUCache", "GraphiteDawnCache", "GrShaderCache", "ShaderCache", "Shared Dictionary", "blob_storage"),
        *("Crashpad", "Crash Reports", "BrowserMetrics", "component_crx_cache", "extensions_crx_cache"),
        *("Safe Browsing", "optimization_guide_model_store", "OptimizationGuidePredictionModels"),
        *("segmentation_platform", "DevToolsActivePort"),
    }
)
"""Files and directories of Chromium that it makes anew: caches, reports, what it downloads for itself."""


@dataclass(frozen=True, slots=True)
class SavedProfile:
    """A profile as lists show it. `bytes` and `saved_at` (Unix seconds) are None while it has never been saved."""

    profile: Profile
    bytes: int | None
    saved_at: float | None
    use: ProfileUse | None


class ProfileStore:
    """All profiles below one directory, which is made when it is needed. Several processes may use it at once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # What is there

    def all(self) -> list[SavedProfile]:
        """All profiles, by owner and name. Raises OSError."""
        directories = sorted(each.name for each in _listed(self.directory) if each.is_dir())
        owners = ["" if name == _NO_TOKEN else name for name in directories]
        return [each for owner in owners for each in self.of_owner(owner)]

    def of_owner(self, owner: str) -> list[SavedProfile]:
        """The profiles of one owner, by name. Raises OSError."""
        found = []
        names = {each.stem for each in _listed(self._of_owner(owner)) if each.suffix in (".tar", ".json")}
        for name in sorted(each for each in names if NAME.fullmatch(each)):
            profile = Profile(owner, name)
            saved, use = _status(self._saved(profile)), self.use_of(profile)
            if saved or use:
                size, at = (saved.st_size, saved.st_mtime) if saved else (None, None)
                found.append(SavedProfile(profile, size, at, use))
        return found

    def use_of(self, profile: Profile) -> ProfileUse | None:
        """The session that has this profile now."""
        try:
            said = orjson.loads(self._in_use(profile).read_bytes())
            if said["boot"] == boot_id() and any(create_time(int(pid)) == at for pid, at in said["processes"]):
                return ProfileUse(**said["use"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            pass  # nobody has it, or what a power cut left of the file
        return None

    def check(self, profile: Profile, most: int) -> None:
        """Raises ProfileInUse, or TooManyProfiles where its owner has `most` others and this one is not saved yet;
        OSError."""
        if (use := self.use_of(profile)) is not None:
            raise ProfileInUse(use)
        if _status(self._saved(profile)) is None:
            others = [each for each in self.of_owner(profile.owner) if each.profile != profile]
            if len(others) >= most:
                raise TooManyProfiles

    # For one session at a time

    def take(self, profile: Profile, use: ProfileUse, pid: int, most: int) -> None:
        """Gives a profile to a session, until `let_go` or the end of process `pid`. Raises as `check`."""
        with self._changing(profile):
            self.check(profile, most)
            for draft in self._saved(profile).parent.glob(f".{profile.name}.*"):
                draft.unlink(missing_ok=True)  # of one that was killed
            self._write_use(profile, use, pid)

    def ends(self, profile: Profile, session: str, *pids: int) -> None:
        """Notes that this session, if it has the profile, is about to end: it has it until `let_go`, or until the last
        of these processes has ended. Raises OSError."""
        with self._changing(profile):
            use = self._noted(profile)
            if use is not None and use.session == session:
                self._write_use(profile, replace(use, is_ending=True), *pids)

    def let_go(self, profile: Profile, session: str) -> None:
        """Nobody has it any more, if this session has it. Raises OSError."""
        with self._changing(profile):
            if self._has(profile, session):
                self._in_use(profile).unlink(missing_ok=True)

    def unpack(self, profile: Profile, into: Path) -> None:
        """Puts what was saved last into this new directory; nothing if it was never saved. Raises OSError and
        tarfile.TarError."""
        into.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError), tarfile.open(self._saved(profile), "r:") as saved:
            for member in saved:
                parts = Path(member.name).parts
                content = saved.extractfile(member) if member.isreg() else None
                if content is None or os.path.isabs(member.name) or ".." in parts:
                    raise tarfile.ReadError(f"it has {member.name!r}, which is no plain file below it")
                path = into.joinpath(*parts)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with path.open("xb") as file:
                    shutil.copyfileobj(content, file, _MIB)

    def save(
        self, profile: Profile, session: str, source: Path, most_mib: int, is_late: Callable[[], bool] = lambda: False
    ) -> int:
        """Saves what is in this directory, in place of what was saved before, if the session still has the profile and
        it is not late. Returns the size in bytes. Raises NotSaved and OSError; then nothing has changed."""
        saved = self._saved(profile)
        draft = saved.with_name(f".{profile.name}.{session}.tar")
        draft.unlink(missing_ok=True)  # of a worker that was killed while it saved
        try:
            with open(draft, "xb", opener=_private) as file:
                size = _pack(source, file, most_mib * _MIB)
                file.flush()
                os.fsync(file.fileno())
            with self._changing(profile) as directory:
                if is_late():
                    raise NotSaved("copying it took too long")
                if not self._has(profile, session):
                    raise NotSaved("another session has it meanwhile")
                os.replace(draft, saved)
                os.fsync(directory)
        finally:
            draft.unlink(missing_ok=True)
        return size

    # For operators

    def remove(self, profile: Profile) -> None:
        """Removes one that nobody has. Raises ProfileInUse, FileNotFoundError if there is none, OSError."""
        with self._changing(profile):
            if (use := self.use_of(profile)) is not None:
                raise ProfileInUse(use)
            self._saved(profile).unlink()
            self._in_use(profile).unlink(missing_ok=True)

    def export(self, profile: Profile, to: IO[bytes]) -> None:
        """Writes what was saved last. Raises FileNotFoundError if that is nothing, OSError."""
        with self._saved(profile).open("rb") as saved:
            shutil.copyfileobj(saved, to, _MIB)

    def used_by(self, pid: int) -> list[SavedProfile]:
        """The profiles that sessions have whose end this process would be."""
        return [each for each in self.all() if each.use and pid in self._pids(each.profile)]

    def _pids(self, profile: Profile) -> set[int]:
        try:
            return {int(pid) for pid, _ in orjson.loads(self._in_use(profile).read_bytes())["processes"]}
        except (OSError, ValueError, TypeError, KeyError):
            return set()

    def _has(self, profile: Profile, session: str) -> bool:
        """Whether this session has it, also where its processes have ended."""
        use = self._noted(profile)
        return use is not None and use.session == session

    def _noted(self, profile: Profile) -> ProfileUse | None:
        """The session that had it last, until that lets it go, also where its processes have ended."""
        try:
            return ProfileUse(**orjson.loads(self._in_use(profile).read_bytes())["use"])
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def _write_use(self, profile: Profile, use: ProfileUse, *pids: int) -> None:
        processes = [(pid, created) for pid in pids if (created := create_time(pid)) is not None]
        told = {name: value for name, value in asdict(use).items() if value or name in ("session", "since")}
        said = {"boot": boot_id(), "processes": processes, "use": told}
        write_whole(self._in_use(profile), orjson.dumps(said))

    def _of_owner(self, owner: str) -> Path:
        return self.directory / (owner or _NO_TOKEN)

    def _saved(self, profile: Profile) -> Path:
        return self._of_owner(profile.owner) / f"{profile.name}.tar"

    def _in_use(self, profile: Profile) -> Path:
        return self._of_owner(profile.owner) / f"{profile.name}.json"

    @contextlib.contextmanager
    def _changing(self, profile: Profile) -> Iterator[int]:
        """Admits one block at a time to the profiles of one owner. Yields a descriptor of their directory."""
        path = self._of_owner(profile.owner)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            yield directory
        finally:
            os.close(directory)


def _pack(source: Path, file: IO[bytes], most_bytes: int) -> int:
    """Writes the plain files below `source` as tar, without what is left out; returns its size. Follows no link: a
    browser that was broken into may have made some. Raises NotSaved for more than `most_bytes`."""
    size = 2 * _BLOCK
    with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as packed:
        for path, directories, names, fd in os.fwalk(source, onerror=_raise):
            directories[:] = [each for each in directories if each not in _LEFT_OUT]
            for name in names:
                if name in _LEFT_OUT or (opened := _opened(name, fd)) is None:
                    continue
                with opened as content:
                    status = os.fstat(content.fileno())
                    info = tarfile.TarInfo(os.path.relpath(os.path.join(path, name), source))
                    info.size, info.mtime, info.mode = status.st_size, int(status.st_mtime), 0o600
                    size += _BLOCK + -(-info.size // _BLOCK) * _BLOCK
                    if size > most_bytes:
                        raise NotSaved(f"it is larger than PROFILE_MAX_MIB={most_bytes // _MIB}")
                    packed.addfile(info, content)
    return size


def _opened(name: str, directory: int) -> IO[bytes] | None:
    """A plain file, to be read; None for anything else."""
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return None
    return open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb")


def _raise(error: OSError) -> None:
    raise error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _listed(directory: Path) -> list[Path]:
    try:
        return [*directory.iterdir()]
    except FileNotFoundError:
        return []


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
