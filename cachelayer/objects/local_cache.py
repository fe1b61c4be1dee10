"""Local copies of remote objects, shared by all processes of a host, within a limit of bytes.

::

    <folder>/lock                                held while room is made or taken; in it, a random name of the folder
    <folder>/<group>/in-use                      locked, shared, by every process that reads copies of the group
    <folder>/<group>/<name>                      a copy, whole
    <folder>/<group>/<name>.part                 one that is being made, locked; of its final size from the start

Copies never change. A group is a dataset: its name is a hash of where that lies.

They are read without further checks, so nobody else may have written them: folders and files are made for their owner
alone, and a folder or a file that belongs to another user, that others may write to, or that is a link, is not used.
Root is nobody else: in a folder of root's, other users read the copies that are there, and make none. What root puts
into a folder that others may look into, others may read.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, StorageError
from cachelayer.objects.local import absolute, storage_errors
from cachelayer.support.arguments import byte_count, integer
from cachelayer.support.counting import count
from cachelayer.support.locks import cached_property
from cachelayer.support.logs import logger_of

_log = logger_of("copies")
_SHARE_OF_FREE = 0.8
_WRITING = "write local copies to"
_PART = ".part"
_IN_USE = "in-use"
_NAME_NBYTES = 16
# The names of groups; any other folder belongs to the user.
_GROUP = re.compile("[0-9a-f]{32}")
_FILE_MODE = 0o600
_FOLDER_MODE = 0o700
_ROOT = 0
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class CacheFolder:
    """A folder of local copies."""

    path: Path
    """The folder; made if it does not exist."""
    limit: int | None = None
    """Bytes that all copies may take together; None for 80 % of the disk space that would be free without them."""

    def group(self, url: str) -> CopyGroup:
        """Return the copies of the shards of the dataset at a URL."""
        return CopyGroup(self, url)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which copies grow and are renamed."""
        with _locked(self.path / "lock", fcntl.LOCK_EX):
            yield

    def sizes(self) -> dict[Path, dict[str, int]]:
        """Return the sizes of the files of each group. Anything else in the folder belongs to the user."""
        entries = self.path.iterdir() if self.path.is_dir() else ()
        groups = (group for group in entries if _GROUP.fullmatch(group.name) and not group.is_symlink())
        return {group: sizes for group in groups if _IN_USE in (sizes := _sizes(group))}

    def copies(self) -> list[Copies]:
        """Return the copies of all groups, the group that was used last first."""
        groups = []
        with storage_errors("list local copies in", self.path):
            for group, files in self.sizes().items():
                if len(files) > 1:
                    # By the clock of the disk, which sets the time of what is touched.
                    lock = self.path / "lock"
                    lock.touch(_FILE_MODE)
                    idle = lock.stat().st_mtime - (group / _IN_USE).stat().st_mtime
                    groups.append(Copies(_url_of(group), len(files) - 1, sum(files.values()), idle))
        return sorted(groups, key=lambda group: group.idle)

    def clear(self) -> None:
        """Remove all copies of groups that nobody uses."""
        with storage_errors("remove local copies in", self.path):
            if self.path.is_dir():
                with self.locked():
                    self._remove(self.sizes(), math.inf)

    def make_room(self, nbytes: int, keep: Path) -> bool:
        """Remove copies of groups but ``keep`` that no process uses until so many bytes fit; return whether they do.

        The caller holds the lock. The copies of the group that was used longest ago are removed first.
        """
        sizes = self.sizes()
        for group, files in sizes.items():
            for name in [name for name in files if name.endswith(_PART) and _remove_abandoned(group / name)]:
                del files[name]
        used = sum(sum(files.values()) for files in sizes.values())
        own = sizes.pop(keep, {})
        limit = self._limit_with(used)
        if sum(own.values()) + nbytes > limit:
            return False
        return self._remove(sizes, used + nbytes - limit) <= 0

    def room_for(self, group: Path) -> int:
        """Return the bytes that copies of a group may take: all but the bytes of other groups that are in use now."""
        with self.locked():
            nbytes = {path: sum(files.values()) for path, files in self.sizes().items()}
            in_use = sum(nbytes[path] for path in nbytes if path != group and _is_in_use(path))
            return self._limit_with(sum(nbytes.values())) - in_use

    def name(self) -> bytes:
        """Return the random name of this folder, the same for all hosts that see it."""
        with self.locked(), self.path.joinpath("lock").open("r+b") as file:
            name = file.read(_NAME_NBYTES)
            if len(name) < _NAME_NBYTES:
                name = os.urandom(_NAME_NBYTES)
                os.pwrite(file.fileno(), name, 0)
            return name

    def _limit_with(self, used: int) -> int:
        """Return the bytes that all copies may take, given how many they take."""
        if self.limit is not None:
            return self.limit
        return int((used + shutil.disk_usage(self.path).free) * _SHARE_OF_FREE)

    def _remove(self, sizes: Mapping[Path, Mapping[str, int]], missing: float) -> float:
        """Remove copies that no process uses until so many bytes are free; return how many are still missing."""
        for group in sorted(sizes, key=lambda group: (group / _IN_USE).stat().st_mtime):
            with _locked(group / _IN_USE, fcntl.LOCK_EX | fcntl.LOCK_NB) as unused:
                for name, size in sizes[group].items() if unused is not None else ():
                    if missing > 0 and name != _IN_USE:
                        (group / name).unlink(missing_ok=True)
                        missing -= size
                        _report_eviction(group / name)
        return missing


@dataclass(frozen=True)
class Copies:
    """The local copies of a group."""

    url: str
    """The URL of the dataset."""
    files: int
    """Number of copies."""
    nbytes: int
    """Bytes of the copies."""
    idle: float
    """Seconds since a program began to use them."""


class CopyOutcome(Enum):
    """The outcome of making a local copy."""

    HERE = "it is there"
    NO_ROOM = "there is no room for it"
    BUSY = "another process is making it"


class CopyGroup:
    """The local copies of one group. While this object lives, no process removes them."""

    def __init__(self, folder: CacheFolder, url: str) -> None:
        self._folder = folder
        self._url = url
        self._path = folder.path / hashlib.sha256(url.encode()).hexdigest()[:32]
        with storage_errors(_WRITING, self._path):
            # The folder itself may be a link that its user made; nothing within it may be one.
            owner, mode = _make_private(folder.path, folder.path.stat)
            self.is_read_only = owner != os.geteuid()
            """Whether this user may read the copies, which are root's, and not make any."""
            if self.is_read_only and not self._path.exists():
                return
            _make_private(self._path, self._path.lstat)
            flags = os.O_RDONLY if self.is_read_only else os.O_RDWR | os.O_CREAT
            self._in_use = os.open(self._path / _IN_USE, flags | os.O_NOFOLLOW, _FILE_MODE)
            weakref.finalize(self, os.close, self._in_use)
            # A process that removes copies holds the lock exclusively, for a moment.
            fcntl.flock(self._in_use, fcntl.LOCK_SH)
            if self.is_read_only:
                return
            self._for_others = mode & 0o055 if owner == _ROOT else 0
            self._path.chmod(_FOLDER_MODE | self._for_others)
            os.fchmod(self._in_use, self._file_mode)
            os.utime(self._path / _IN_USE)
            # For people.
            os.pwrite(self._in_use, url.encode(), 0)

    @property
    def _file_mode(self) -> int:
        return _FILE_MODE | (self._for_others & 0o044)

    def path(self, name: str) -> Path:
        """Return the path of the copy of an object, whether or not it exists yet."""
        return self._path / name

    def has(self, name: str, nbytes: int) -> bool:
        """Return whether there is a copy of an object of so many bytes, which only this user, or root, has written."""
        with suppress(OSError):
            status = self.path(name).lstat()
            is_own = status.st_uid in (os.geteuid(), _ROOT) and not status.st_mode & _BY_OTHERS
            return stat.S_ISREG(status.st_mode) and is_own and status.st_size == nbytes
        return False

    def room(self) -> int:
        """Return the bytes that the copies of this group may take, including the copies that are there."""
        if self.is_read_only:
            return 0
        with storage_errors(_WRITING, self._path):
            return self._folder.room_for(self._path)

    def place_of(self, content: str) -> bytes:
        """Return the place of an object in the order in which this folder gets copies: a hash of both.

        Hosts that begin at once copy other objects first. Hosts that share a folder, and programs that come later,
        choose the same objects if there is no room for all.
        """
        if self.is_read_only:
            return content.encode()
        return hashlib.sha256(self._folder_name + content.encode()).digest()

    @cached_property
    def _folder_name(self) -> bytes:
        with storage_errors(_WRITING, self._path):
            return self._folder.name()

    def move_in(self, files: Mapping[Path, str]) -> None:
        """Turn durable files of the folder of all copies into copies of objects, by their names, if there is room."""
        with storage_errors(_WRITING, self._path), self._folder.locked():
            if self._folder.make_room(sum(path.stat().st_size for path in files), self._path):
                for path, name in files.items():
                    path.chmod(self._file_mode)
                    path.replace(self.path(name))

    def make_room_without(self, names: Collection[str]) -> bool:
        """Remove all copies of this group but these, unless another process uses it; return whether there were any."""
        with suppress(OSError), self._folder.locked():
            try:
                fcntl.flock(self._in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Other threads may be writing parts of copies that stay.
                names_to_keep = {*names, _IN_USE}
                others = {name for name in _sizes(self._path) if name.removesuffix(_PART) not in names_to_keep}
                for name in others:
                    self.path(name).unlink(missing_ok=True)
                    _report_eviction(self.path(name))
                return bool(others)
            finally:
                fcntl.flock(self._in_use, fcntl.LOCK_SH)
        return False

    def drop(self, name: str) -> None:
        """Remove a damaged copy."""
        with suppress(OSError):
            self.path(name).unlink(missing_ok=True)

    def make(self, name: str, nbytes: int, fill: Callable[[Path], None]) -> CopyOutcome:
        """Make a copy, which ``fill`` writes and checks, unless it exists; return whether it is there now."""
        if self.is_read_only:
            return CopyOutcome.HERE if self.has(name, nbytes) else CopyOutcome.NO_ROOM
        final = self.path(name)
        part = final.with_name(final.name + _PART)
        with storage_errors(_WRITING, final):
            if self.has(name, nbytes):
                return CopyOutcome.HERE
            with _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
                # The last holder of the lock has finished the copy, or removed it.
                if descriptor is None or not _is_at(descriptor, part):
                    return CopyOutcome.HERE if self.has(name, nbytes) else CopyOutcome.BUSY
                try:
                    # It may have been finished between the first look and the lock.
                    if self.has(name, nbytes):
                        return CopyOutcome.HERE
                    return self._make(descriptor, part, final, fill, nbytes)
                finally:
                    if _is_at(descriptor, part):
                        part.unlink()

    def _make(self, descriptor: int, part: Path, final: Path, fill: Callable[[Path], None], nbytes: int) -> CopyOutcome:
        with self._folder.locked():
            os.truncate(descriptor, 0)
            if not self._folder.make_room(nbytes, self._path):
                return CopyOutcome.NO_ROOM
            os.truncate(descriptor, nbytes)
        fill(part)
        if os.fstat(descriptor).st_size != nbytes:
            raise StorageError(f"{part}: {os.fstat(descriptor).st_size} bytes were copied, expected {nbytes}")
        os.fchmod(descriptor, self._file_mode)
        os.fsync(descriptor)
        # Without the lock, a process that lists copies now would see neither name.
        with self._folder.locked():
            part.replace(final)
        return CopyOutcome.HERE

    def __reduce__(self) -> tuple[type[CopyGroup], tuple[CacheFolder, str]]:
        return CopyGroup, (self._folder, self._url)


def folder_of(local_cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of local copies: this one, else ``CACHELAYER_LOCAL_CACHE``, else one of the user's."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    chosen = (os.environ.get("CACHELAYER_LOCAL_CACHE") or f"{base}/cachelayer") if local_cache is None else local_cache
    if not isinstance(chosen, (str, os.PathLike)):
        raise InvalidTypeError(f"local_cache: expected the path of a folder, got a {type(chosen).__name__}")
    text = os.fspath(chosen)
    if not text or "\0" in text or "://" in text:
        raise InvalidArgumentError(f"local_cache {text!r}: expected the path of a folder of this host")
    try:
        folder = absolute(f"local_cache {text!r}", text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error} Set CACHELAYER_LOCAL_CACHE, or pass local_cache=") from error
    # What cannot be looked at is told of when copies are made.
    with suppress(OSError):
        if folder.is_file():
            raise InvalidArgumentError(f"local_cache {text!r} is a file: expected the path of a folder of this host")
    return folder


def limit_of(local_cache_bytes: int | str | None) -> int | None:
    """Return the bytes that copies may take: these, else ``CACHELAYER_LOCAL_CACHE_BYTES``, else None for no limit."""
    setting = os.environ.get("CACHELAYER_LOCAL_CACHE_BYTES")
    if isinstance(local_cache_bytes, str):
        return byte_count(local_cache_bytes)
    if local_cache_bytes is not None or not setting:
        return None if local_cache_bytes is None else integer("local_cache_bytes", local_cache_bytes, 0)
    try:
        return byte_count(setting)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"CACHELAYER_LOCAL_CACHE_BYTES: {error}") from error


def _remove_abandoned(part: Path) -> bool:
    """Remove what a killed process left of a copy; return whether it is gone."""
    with _locked(part, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor:
        if descriptor is not None:
            part.unlink(missing_ok=True)
        return descriptor is not None


def _is_in_use(group: Path) -> bool:
    with _locked(group / _IN_USE, fcntl.LOCK_EX | fcntl.LOCK_NB) as unused:
        return unused is None


def _sizes(group: Path) -> dict[str, int]:
    """Return the size of each file of a group; there may be very many."""
    sizes: dict[str, int] = {}
    with suppress(OSError), os.scandir(group) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = 0 if entry.name == _IN_USE else entry.stat().st_size
    return sizes


def _report_eviction(copy: Path) -> None:
    count(copies_evicted=1)
    _log.info("%(object)s: the local copy is removed, to make room", {"object": f"{_url_of(copy.parent)}/{copy.name}"})


def _url_of(group: Path) -> str:
    return (group / _IN_USE).read_text("utf-8", "replace") or group.name


def _make_private(folder: Path, status_of: Callable[[], os.stat_result]) -> tuple[int, int]:
    """Make a folder for this user alone if it does not exist, and refuse one that others could write to.

    Return the owner and the mode of the folder: it is this user's, or root's.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
    status = status_of()
    problem = None
    if not stat.S_ISDIR(status.st_mode):
        problem = "it is a link: remove it"
    elif status.st_uid not in (os.geteuid(), _ROOT):
        problem = f"it belongs to user {status.st_uid}, not to {os.geteuid()}, who reads here: pass another local_cache"
    elif status.st_mode & _BY_OTHERS:
        problem = f"other users may write to it: run chmod -R go-w {folder}, or pass another local_cache"
    if problem:
        raise StorageError(f"local copies in {folder} are not used: {problem}")
    return status.st_uid, status.st_mode


@contextmanager
def _locked(path: Path, how: int) -> Iterator[int | None]:
    """Hold a lock on a file, made if need be, and yield its descriptor; None if another holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, _FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False
