"""Local copies of remote objects, shared by all processes of a host, within a limit of bytes.

::

    <folder>/lock                                held while room is made or taken; holds the count of what copies take
    <folder>/<group>/in-use                      locked, shared, by every process that reads copies of the group
    <folder>/<group>/<name>                      a copy, whole
    <folder>/<group>/<name>.part                 one that is being made, locked; of its final size from the start

Copies never change. A group is what one build attempt wrote: its name is a hash of where that lies.

They are read without further checks, so nobody else may have written them: folders and files are made for their owner
alone, and a folder or a file that belongs to another user, that others may write to, or that is a link, is not used.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.copies_count import GROUP, Count, CountFile
from cachelayer.objects.local import absolute, storage_error
from cachelayer.objects.private_files import FILE_MODE, is_at, locked, make_private, nbytes_of, private_nbytes

_SHARE_OF_FREE = 0.8
_PART = ".part"
_IN_USE = "in-use"


@dataclass(frozen=True)
class CacheFolder:
    """A folder of local copies.

    Args:
        path: the folder; made if it does not exist.
        limit: bytes that all copies in it may take together; None for 80 % of the disk space that would be
            free without them.
    """

    path: Path
    limit: int | None = None

    def group(self, url: str) -> CopyGroup:
        """Return the copies of what lies below a URL.

        Raises:
            StorageError: if the folder cannot be written.
        """
        return CopyGroup(self, hashlib.sha256(url.encode()).hexdigest()[:32])

    def of_attempt(self, url: str, dataset_id: str, attempt: str) -> CopyGroup:
        """Return the copies of what one build attempt wrote to a storage; see :meth:`group`."""
        return self.group(f"{url}/{paths.build(dataset_id, attempt)}")

    @contextmanager
    def locked(self) -> Iterator[CountFile]:
        """Hold the lock under which copies grow, are renamed and are removed; yield the count of what they take."""
        path = self.path / "lock"
        while True:
            with locked(path, fcntl.LOCK_EX) as file:
                # If the file was deleted meanwhile, others may hold a lock on a new one.
                if file is not None and is_at(file, path):
                    yield CountFile(file.fileno(), self._list_copies)
                    return

    def allowed(self, used: int, free: int) -> int:
        """Return the bytes that all copies may take, given what they take now and what the disk has free."""
        return int((used + free) * _SHARE_OF_FREE) if self.limit is None else self.limit

    def sizes(self) -> dict[Path, dict[str, int]]:
        """Return the sizes of the files of each group. Anything else in the folder belongs to the user."""
        groups = (group for group in self.path.iterdir() if GROUP.fullmatch(group.name) and not group.is_symlink())
        return {group: found for group in groups if _IN_USE in (found := _sizes(group))}

    def _list_copies(self) -> Count:
        """Count all copies, and remove what killed processes left of some; the lock is held."""
        listed = time.time()
        nbytes, files = {}, 0
        for group, sizes in self.sizes().items():
            parts = (name for name in sizes if name.endswith(_PART))
            left = {name for name in parts if _remove_abandoned(group / name)}
            nbytes[group.name] = sum(size for name, size in sizes.items() if name not in left)
            files += len(sizes)
        return Count(nbytes, files, listed)

    def make_room(self, count: CountFile, nbytes: int, keep: str) -> bool:
        """Remove copies of other groups that nobody uses until so many bytes fit; return whether they do.

        Args:
            count: what the copies take; the lock is held.
            nbytes: the bytes that are about to be written.
            keep: the group that they are for; none of it is removed.
        """
        if self._fits(count.now(), nbytes) or self._fits(count.checked(), nbytes):
            return True
        now = count.now()
        limit = self._allowed_beside(now)
        if now.nbytes.get(keep, 0) + nbytes > limit:
            return False
        missing = now.total + nbytes - limit
        others = [self.path / name for name, taken in now.nbytes.items() if taken and name != keep]
        for group in sorted(others, key=_last_use):
            removed = _remove_unused(group, missing)
            count.add(group.name, -removed)
            missing -= removed
            if missing <= 0:
                return True
        return False

    def _fits(self, count: Count, nbytes: int) -> bool:
        return count.total + nbytes <= self._allowed_beside(count)

    def _allowed_beside(self, count: Count) -> int:
        return self.allowed(count.total, shutil.disk_usage(self.path).free)


class CopyOutcome(Enum):
    """What came of making a local copy."""

    HERE = "it is there"
    NO_ROOM = "there is no room for it"
    BUSY = "another process is making it"


class CopyGroup:
    """The local copies of one group; while this object lives, no process removes them.

    Args:
        folder: where they are kept.
        name: the group.

    Raises:
        StorageError: if the folder cannot be written.
    """

    def __init__(self, folder: CacheFolder, name: str) -> None:
        self._folder = folder
        self._path = folder.path / name
        try:
            # The folder itself may be a link that its user made; nothing within it may be one.
            make_private(folder.path, Path.stat)
            make_private(self._path, Path.lstat)
            self._in_use, self._release = self._hold()
        except CacheLayerError:
            raise
        except OSError as error:
            raise storage_error("write local copies to", self._path, error) from error

    def _hold(self) -> tuple[int, Callable[[], object]]:
        """Keep others from removing copies; return the descriptor of the lock, and what releases it."""
        in_use = os.open(self._path / _IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
        release = weakref.finalize(self, os.close, in_use)
        # A process that removes copies holds the lock exclusively, for a moment.
        fcntl.flock(in_use, fcntl.LOCK_SH)
        os.utime(self._path / _IN_USE)
        return in_use, release

    def path(self, name: str) -> Path:
        """Return the path of the copy of an object, whether or not it exists yet."""
        return self._path / name

    def has(self, name: str, nbytes: int) -> bool:
        """Return whether there is a whole copy of an object of so many bytes."""
        return private_nbytes(self.path(name)) == nbytes

    def adopt(self, files: Sequence[Path]) -> bool:
        """Make copies of files that were written into the folder if there is room, else remove them.

        Returns:
            Whether there was room.

        Raises:
            StorageError: if the file system refuses.
        """
        try:
            with self._folder.locked() as count:
                nbytes = 0
                for path in files:
                    path.chmod(FILE_MODE)
                    nbytes += path.stat().st_size
                count.include(self._path.name, nbytes)
                if self._folder.make_room(count, 0, self._path.name):
                    return True
                for path in files:
                    path.unlink()
                count.add(self._path.name, -nbytes)
                return False
        except OSError as error:
            raise storage_error("write local copies to", self._path, error) from error

    def drop(self, name: str) -> None:
        """Remove a damaged copy."""
        with suppress(OSError), self._folder.locked() as count:
            nbytes = nbytes_of(self.path(name))
            self.path(name).unlink(missing_ok=True)
            count.add(self._path.name, -nbytes)

    def note_removals(self) -> None:
        """Let the copies be counted again: some were removed by other means."""
        with suppress(OSError), self._folder.locked() as count:
            count.renew()

    def make(self, name: str, nbytes: int, fill: Callable[[Path], None]) -> CopyOutcome:
        """Make a copy unless it exists.

        Args:
            name: the object.
            nbytes: its size.
            fill: writes the copy into the existing file at the path that it is given, and checks it.

        Returns:
            Whether it is there now.

        Raises:
            StorageError: if the folder cannot be written.
            CacheLayerError: what ``fill`` raises.
        """
        final = self.path(name)
        part = final.with_name(final.name + _PART)
        try:
            if self.has(name, nbytes):
                return CopyOutcome.HERE
            if part.is_symlink():
                part.unlink()
            with locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as file:
                # The last holder of the lock has finished the copy, or removed it.
                if file is None or not is_at(file, part):
                    return CopyOutcome.HERE if self.has(name, nbytes) else CopyOutcome.BUSY
                return self._make(file, part, final, nbytes, fill)
        except OSError as error:
            if isinstance(error, CacheLayerError):
                raise
            raise storage_error("write local copy", final, error) from error

    def _make(self, file: BinaryIO, part: Path, final: Path, nbytes: int, fill: Callable[[Path], None]) -> CopyOutcome:
        """Make a copy; the lock on its part is held."""
        # A killed process may have left a part of its final size.
        taken = os.fstat(file.fileno()).st_size
        try:
            # It was finished between the first look and the lock.
            if self.has(final.name, nbytes):
                return CopyOutcome.HERE
            with self._folder.locked() as count:
                self._hold_again(count)
                file.truncate(0)
                count.add(self._path.name, -taken)
                taken = 0
                if not self._folder.make_room(count, nbytes, self._path.name):
                    return CopyOutcome.NO_ROOM
                count.add(self._path.name, nbytes)
                taken = nbytes
                file.truncate(nbytes)
            fill(part)
            _bring_to_disk(part, nbytes)
            # Without the lock, a process that lists copies now would see neither name.
            with self._folder.locked() as count:
                replaced = nbytes_of(final)
                part.replace(final)
                count.add(self._path.name, -replaced)
        finally:
            if is_at(file, part):
                with self._folder.locked() as count:
                    part.unlink()
                    count.add(self._path.name, -taken)
        return CopyOutcome.HERE

    def _hold_again(self, count: CountFile) -> None:
        """Hold the group and count all copies if a user has deleted it meanwhile."""
        if not is_at(self._in_use, self._path / _IN_USE):
            self._release()
            self._in_use, self._release = self._hold()
            count.renew()

    def __reduce__(self) -> tuple[type[CopyGroup], tuple[CacheFolder, str]]:
        return CopyGroup, (self._folder, self._path.name)


def folder_of(local_cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of local copies: this one, else ``CACHELAYER_LOCAL_CACHE``, else one of the user's.

    Raises:
        InvalidArgumentError: for a URL or a path of another host.
        InvalidTypeError: if it is not a path at all.
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


def _remove_abandoned(part: Path) -> bool:
    """Remove what a killed process left of a copy; return whether it is gone."""
    with locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as file:
        if file is None:
            return False
        part.unlink(missing_ok=True)
        return True


def _remove_unused(group: Path, nbytes: int) -> int:
    """Remove so many bytes of copies of a group, or all, if nobody uses it; return how many were removed."""
    removed = 0
    if not (group / _IN_USE).is_file():
        # A user has deleted the group.
        return removed
    how = fcntl.LOCK_EX | fcntl.LOCK_NB
    with suppress(OSError), locked(group / _IN_USE, how) as unused, os.scandir(group) as entries:
        # There may be very many copies: only so many are looked at as are removed.
        while unused and removed < nbytes and (entry := next(entries, None)) is not None:
            if entry.name != _IN_USE and entry.is_file(follow_symlinks=False):
                size = entry.stat().st_size
                (group / entry.name).unlink(missing_ok=True)
                removed += size
    return removed


def _sizes(group: Path) -> dict[str, int]:
    """Return the size of each file of a group; there may be very many."""
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
