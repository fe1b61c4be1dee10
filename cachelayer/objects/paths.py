"""Every name of an object in a storage, and the grammar of the names that users choose.

::

    <root>/<dataset id>/_log/0000000001.json              an entry of the log
    <root>/<dataset id>/_log/head                         a hint at the last entry
    <root>/<dataset id>/_leases/<version>                 who builds this version; in a bucket /<turn> behind it
    <root>/<dataset id>/_running/<attempt>                who runs this build attempt
    <root>/<dataset id>/_unfinished/<version>/<attempt>/  what this attempt has finished, while it builds the version
    <root>/<dataset id>/_builds/<attempt>/manifest.json
    <root>/<dataset id>/_builds/<attempt>/shard-00000.array_record, shard-00000.index
    <root>/<dataset id>/_builds/<attempt>/kept.i64        the numbers of the records that a version keeps of its shards

Names begin with the dataset's id here and use ``/``; a manifest holds names relative to the dataset.
"""

from __future__ import annotations

import re

from cachelayer.errors import InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_MADE_UP = re.compile(r"[0-9]{8}T[0-9]{6}-[0-9a-f]{12}([.][0-9a-f]{12})?", re.ASCII)
_RESERVED_PREFIX = "sha256"
LATEST = "latest"
BUILDS = "_builds"
_FILE = re.compile(rf"{BUILDS}/({_NAME.pattern})/(?:{_NAME.pattern})", re.ASCII)


def check_name(kind: str, name: object) -> str:
    """The name, if it is one.

    Args:
        kind: what it names, for the message: ``dataset id``, ``version`` or ``tag``.

    Raises:
        InvalidNameError: where it is outside the grammar or reserved.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidNameError(f"{kind} {name!r}: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    if name == LATEST or name.startswith(_RESERVED_PREFIX):
        raise InvalidNameError(
            f"{kind} {name!r}: '{LATEST}' and names that begin with '{_RESERVED_PREFIX}' are reserved"
        )
    return name


def log(dataset_id: str) -> str:
    """The folder of the log."""
    return f"{dataset_id}/_log"


def log_entry(dataset_id: str, sequence: int) -> str:
    """An entry of the log."""
    return f"{log(dataset_id)}/{sequence:010}.json"


def log_head(dataset_id: str) -> str:
    """The hint at the last entry of the log."""
    return f"{log(dataset_id)}/head"


def version_lease(dataset_id: str, version: str) -> str:
    """The lease of who builds a version."""
    return f"{dataset_id}/_leases/{version}"


def builds(dataset_id: str) -> str:
    """The folder of all build attempts."""
    return f"{dataset_id}/{BUILDS}"


def build(dataset_id: str, attempt: str) -> str:
    """The folder of a build attempt."""
    return f"{dataset_id}/{BUILDS}/{attempt}"


def running(dataset_id: str) -> str:
    """The folder of the leases of all build attempts."""
    return f"{dataset_id}/_running"


def build_lease(dataset_id: str, attempt: str) -> str:
    """The lease of who runs a build attempt: held before the attempt has a folder, until it is published or deleted."""
    return f"{running(dataset_id)}/{attempt}"


def unfinished(dataset_id: str, version: str = "") -> str:
    """What attempts at a version that did not end have finished; without a version the folder of all."""
    folder = f"{dataset_id}/_unfinished"
    return f"{folder}/{version}" if version else folder


def manifest(attempt: str) -> str:
    """The manifest of an attempt, relative to the dataset."""
    return f"{BUILDS}/{attempt}/manifest.json"


def kept(attempt: str) -> str:
    """The numbers of the records that a version keeps, relative to the dataset."""
    return f"{BUILDS}/{attempt}/kept.i64"


def shard(attempt: str, number: int) -> str:
    """A shard of an attempt, relative to the dataset."""
    return f"{BUILDS}/{attempt}/shard-{number:05}.array_record"


def index_of(shard_name: str) -> str:
    """The index of a shard."""
    return shard_name.removesuffix(".array_record") + ".index"


def is_dataset_id(name: str) -> bool:
    """Return whether a folder of this name can be a dataset."""
    return _NAME.fullmatch(name) is not None and name != LATEST and not name.startswith(_RESERVED_PREFIX)


def is_attempt(name: str) -> bool:
    """Whether a name can be that of a build attempt, and not of something that somebody else put there."""
    return _NAME.fullmatch(name) is not None


def is_made_up(attempt: str) -> bool:
    """Return whether a name is one that only builds and copies give: a time and a random number."""
    return _MADE_UP.fullmatch(attempt) is not None


def check_attempt(name: object) -> str:
    """The name of a build attempt, if it can be one.

    Raises:
        InvalidNameError: if it cannot.
    """
    if not isinstance(name, str) or not is_attempt(name):
        raise InvalidNameError(f"{str(name)[:200]!r} is not the name of a build attempt")
    return name


def attempt_of(name: str) -> str:
    """The attempt that a name relative to the dataset belongs to.

    Raises:
        InvalidNameError: if it is not the name of a file of an attempt.
    """
    match = _FILE.fullmatch(name)
    if match is None:
        raise InvalidNameError(f"{name[:200]!r} is not the name of a file of a build attempt")
    return match[1]


def parent_of(name: str) -> str:
    """The folder of an object."""
    return name.rpartition("/")[0]
