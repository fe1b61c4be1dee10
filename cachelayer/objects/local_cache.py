"""Local copies of remote objects, shared by all processes of a host, within a limit of bytes.

::

    <folder>/lock                                held while room is made or taken
    <folder>/<group>/in-use                      locked, shared, by every process that reads copies of the group
    <folder>/<group>/<name>                      a copy, whole
    <folder>/<group>/<name>.part                 one that is being made, locked; of its final size from the start

Copies never change. A group is what one build attempt wrote: its name is a hash of where that lies.

They are read as they lie there, so nobody else may have put them there: folders and files are made for their owner
alone, and a folder or a file that belongs to another user, that others may write to, or that is a link, is not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects.local import absolute, storage_error

_SHARE_OF_FREE = 0.8
_PART = ".part"
_IN_USE = "in-use"
_GROUP = re.compile("[0-9a-f]{32}")
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class CacheFolder:
    """A folder of local copies.

    Args:
        path: the folder; made where it does not exist.
        limit: bytes that all copies in it may take together; None for 80 % of what is free on the disk without
            them.
    """

    path: Path
    limit: int | None = None

    def group(self, url: str) -> CopyGroup:
        """The copies of what lies below a URL.

        Raises:
            StorageError: where the folder cannot be written.
        """
        return CopyGroup(self, hashlib.sha256(url.encode()).hexdigest()[:32])

    def locked(self) -> AbstractContextManager[BinaryIO | None]:
        """Held while bytes are counted, and while what counts changes its name or grows."""
        return _locked(self.path / "lock", fcntl.LOCK_EX)

    def allowed(self, used: int, free: int) -> int:
        """Bytes that all copies may take together, where they take ``used`` and the disk has ``free`` beside them."""
        return int((used + free) * _SHARE_OF_FREE) if self.limit is None else self.limit

    def sizes(self) -> dict[Path, dict[str, int]]:
        """Of each group the bytes of its files. What else is in the folder is the user's own."""
        groups = (group for group in self.path.iterdir() if _GROUP.fullmatch(group.name) and not group.is_symlink())
        return {group: found for group in groups if _IN_USE in (found := _sizes(group))}

    def make_room(self, nbytes: int, keep: Path) -> bool:
        """Whether there is room for so many bytes, after copies of other groups that nobody uses were removed.

        Args:
            nbytes: bytes to come.
            keep: the group that they are for; none of it is removed.
        """
        sizes = self.sizes()
        used = sum(sum(found.values()) for found in sizes.values())
        limit = self.allowed(used, shutil.disk_usage(self.path).free)
        if nbytes + sum(sizes.pop(keep, {}).values()) > limit:
            return False
        for group in sorted(sizes, key=_last_use):
            if used + nbytes <= limit:
                break
            with _locked(group / _IN_USE, fcntl.LOCK_EX | fcntl.LOCK_NB) as unused:
                for name, size in sizes[group].items():
                    if unused and used + nbytes > limit and name != _IN_USE:
                        (group / name).unlink(missing_ok=True)
                        used -= size
        return used + nbytes <= limit


class CopyGroup:
    """The local copies of one group, in use by this process for as long as this object lives.

    Args:
        folder: where they are kept.
        name: the group.

    Raises:
        StorageError: where the folder cannot be written.
    """

    def __init__(self, folder: CacheFolder, name: str) -> None:
        self._folder = folder
        self._path = folder.path / name
        try:
            # The folder may be a link that its user made; within it nobody makes any.
            _make_private(folder.path, Path.stat)
            _make_private(self._path, Path.lstat)
            in_use = os.open(self._path / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE)
            weakref.finalize(self, os.close, in_use)
            # Who removes copies holds the lock alone, for a moment.
            fcntl.flock(in_use, fcntl.LOCK_SH)
            os.utime(self._path / _IN_USE)
            for part in self._path.glob(f"*{_PART}"):
                _remove_abandoned(part)
        except CacheLayerError:
            raise
        except OSError as error:
            raise storage_error("write local copies to", self._path, error) from error

    def path(self, name: str) -> Path:
        """Where the copy of an object is, or would be."""
        return self._path / name

    def has(self, name: str, nbytes: int) -> bool:
        """Whether there is a whole copy of an object of so many bytes."""
        return _size(self.path(name)) == nbytes

    def keep(self, path: Path) -> None:
        """Take a file that was written among the copies, by whatever writes files for everybody, for one of them.

        Raises:
            StorageError: if the file system refuses.
        """
        try:
            path.chmod(_FILE_MODE)
        except OSError as error:
            raise storage_error("write local copy", path, error) from error

    def drop(self, name: str) -> None:
        """Remove a copy that is not what it should be."""
        with suppress(OSError):
            self.path(name).unlink(missing_ok=True)

    def fits(self) -> bool:
        """Whether all copies are within the limit, after those of other groups that nobody uses were removed."""
        try:
            with self._folder.locked():
                return self._folder.make_room(0, self._path)
        except OSError as error:
            raise storage_error("write local copies to", self._path, error) from error

    def make(self, name: str, nbytes: int, fill: Callable[[Path], None]) -> bool | None:
        """Make a copy, unless it is there.

        Args:
            name: the object.
            nbytes: its size.
            fill: writes the copy into the file of this path, which exists, and checks it.

        Returns:
            True where it is there now, False where there is no room for it, None where another process is making it.

        Raises:
            StorageError: where the folder cannot be written.
            CacheLayerError: what ``fill`` raises.
        """
        final = self.path(name)
        part = final.with_name(final.name + _PART)
        try:
            if self.has(name, nbytes):
                return True
            with _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as file:
                # Who had the lock before has finished the copy, or removed it.
                if file is None or not _is_at(file, part):
                    return True if self.has(name, nbytes) else None
                try:
                    # It was finished between the first look and the lock.
                    if self.has(name, nbytes):
                        return True
                    if not self._reserve(file, nbytes):
                        return False
                    fill(part)
                    _bring_to_disk(part, nbytes)
                    # Who counts sizes meanwhile would see neither name.
                    with self._folder.locked():
                        part.replace(final)
                finally:
                    if _is_at(file, part):
                        part.unlink()
        except OSError as error:
            if isinstance(error, CacheLayerError):
                raise
            raise storage_error("write local copy", final, error) from error
        return True

    def _reserve(self, part: BinaryIO, nbytes: int) -> bool:
        """Give a part its final size now, so that others count it, if there is room."""
        with self._folder.locked():
            # What a killed process left of it counts no more.
            part.truncate(0)
            if not self._folder.make_room(nbytes, self._path):
                return False
            part.truncate(nbytes)
            return True

    def __reduce__(self) -> tuple[type[CopyGroup], tuple[CacheFolder, str]]:
        return CopyGroup, (self._folder, self._path.name)


def folder_of(local_cache: str | os.PathLike[str] | None = None) -> Path:
    """Where copies are kept: there, or by default in ``CACHELAYER_LOCAL_CACHE``, or in the user's cache folder.

    Raises:
        InvalidArgumentError: for what is no path of this host.
        InvalidTypeError: for what is no path at all.
    """
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = (os.environ.get("CACHELAYER_LOCAL_CACHE") or f"{base}/cachelayer") if local_cache is None else local_cache
    if not isinstance(chosen, (str, os.PathLike)):
        raise InvalidTypeError(f"local_cache: expected the path of a folder, got a {type(chosen).__name__}")
    text = os.fspath(chosen)
    if not text or "\0" in text or "://" in text:
        raise InvalidArgumentError(f"local_cache {text!r}: expected the path of a folder of this host")
    return absolute(f"local_cache {text!r}", text)


def _bring_to_disk(part: Path, nbytes: int) -> None:
    with part.open("rb+") as file:
        if os.fstat(file.fileno()).st_size != nbytes:
            raise StorageError(f"{part}: {os.fstat(file.fileno()).st_size} bytes were copied, expected {nbytes}")
        os.fsync(file.fileno())


@contextmanager
def _locked(path: Path, how: int) -> Iterator[BinaryIO | None]:
    """Hold a lock on a file, which is made where it does not exist; None where ``how`` says not to wait."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, _FILE_MODE)
    with os.fdopen(descriptor, "ab") as file:
        try:
            fcntl.flock(file, how)
        except BlockingIOError:
            yield None
            return
        yield file


def _remove_abandoned(part: Path) -> None:
    """Remove what a killed process left of a copy, so that it takes no room from others."""
    if part.is_symlink():
        part.unlink()
        return
    with _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as file:
        if file is not None and _is_at(file, part):
            part.unlink()


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False


def _size(path: Path) -> int:
    """Bytes of a copy that can be trusted, else -1: only this user can have made it."""
    with suppress(OSError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _BY_OTHERS:
            return status.st_size
    return -1


def _make_private(folder: Path, status_of: Callable[[Path], os.stat_result]) -> None:
    """Make a folder for this user alone, where it does not exist.

    Raises:
        StorageError: if it belongs to another user, or others may write to it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    status = status_of(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageError(f"local copies in {folder} are not used: it is a link: remove it")
    if status.st_uid != os.geteuid():
        raise StorageError(
            f"local copies in {folder} are not used: it belongs to user {status.st_uid}, not to {os.geteuid()}, who "
            "reads here: pass a local_cache of your own, or set CACHELAYER_LOCAL_CACHE"
        )
    if status.st_mode & _BY_OTHERS:
        raise StorageError(
            f"local copies in {folder} are not used: other users may write to it (mode "
            f"{stat.S_IMODE(status.st_mode):04o}): run chmod -R go-w {folder}, or pass another local_cache"
        )


def _sizes(group: Path) -> dict[str, int]:
    """Bytes of each file of a group, of which there may be very many."""
    sizes: dict[str, int] = {}
    with suppress(OSError), os.scandir(group) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat().st_size
    return sizes


def _last_use(group: Path) -> float:
    with suppress(OSError):
        return (group / _IN_USE).stat().st_mtime
    return 0.0
