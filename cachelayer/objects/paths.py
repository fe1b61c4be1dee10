"""The names of all objects in a storage, and the grammar of the names that users choose.

::

    <root>/<dataset id>/_log/0000000001.json              an entry of the log
    <root>/<dataset id>/_log/head                         a hint at the last entry
    <root>/<dataset id>/_leases/<version>                 who builds this version; in a bucket, /<turn> follows
    <root>/<dataset id>/_running/<attempt>                the lease of the process that runs this attempt
    <root>/<dataset id>/_unfinished/<version>/<attempt>/  what this attempt has finished so far of the version
    <root>/<dataset id>/_builds/<attempt>/manifest.json
    <root>/<dataset id>/_builds/<attempt>/shard-00000.array_record, shard-00000.index, shard-00000.lengths
    <root>/<dataset id>/_builds/<attempt>/<digest>.packs  which pieces of documents share a row of a packed view
    <root>/<dataset id>/_builds/<attempt>/kept.i64        which records of its shards a version keeps

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
_PLAN = ".packs"
_FILE = re.compile(rf"{BUILDS}/({_NAME.pattern})/(?:{_NAME.pattern})", re.ASCII)
_IN_DATASET = re.compile(r"(.*?/|)_[a-z]+/(?:.*/)?(?:\d{10}\.json|\d{8}T\d{6}-[0-9a-f]{12})(?:/|$)")
"""A path of a log entry or of an attempt to build: the folder of its dataset, and what follows."""


def check_name(kind: str, name: object) -> str:
    """Return the name if it is valid.

    Args:
        kind: what it names, for the message: ``dataset id``, ``version`` or ``tag``.
    """
    if not isinstance(name, str):
        raise InvalidNameError(
            f"{kind} {name!r} of type {type(name).__name__}: pass a str, such as {_suggested(name)!r}"
        )
    if not _NAME.fullmatch(name):
        raise InvalidNameError(f"{kind} {name!r}: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit")
    if name == LATEST or name.startswith(_RESERVED_PREFIX):
        raise InvalidNameError(
            f"{kind} {name!r}: '{LATEST}' and names that begin with '{_RESERVED_PREFIX}' are reserved"
        )
    return name


def _suggested(name: object) -> str:
    """Return the valid name that is most like an object that is no str: ``1`` becomes v1."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-._")
    return f"v{text}" if text.isdigit() else text[:20] or "v1"


def dataset_folder(path: str) -> str | None:
    """Return the folder, with a slash, of the dataset that a file belongs to by its path; None for other files."""
    match = _IN_DATASET.match(path)
    return None if match is None else match[1]


def log(dataset_id: str) -> str:
    return f"{dataset_id}/_log"


def log_entry(dataset_id: str, sequence: int) -> str:
    return f"{log(dataset_id)}/{sequence:010}.json"


def log_head(dataset_id: str) -> str:
    """Return the hint at the last entry of the log."""
    return f"{log(dataset_id)}/head"


def version_lease(dataset_id: str, version: str) -> str:
    """Return the lease of the builder of a version."""
    return f"{dataset_id}/_leases/{version}"


def builds(dataset_id: str) -> str:
    """Return the folder of all build attempts."""
    return f"{dataset_id}/{BUILDS}"


def build(dataset_id: str, attempt: str) -> str:
    """Return the folder of a build attempt."""
    return f"{dataset_id}/{BUILDS}/{attempt}"


def running(dataset_id: str) -> str:
    """Return the folder of the leases of all build attempts."""
    return f"{dataset_id}/_running"


def build_lease(dataset_id: str, attempt: str) -> str:
    """Return the lease of a build attempt: held from before it has a folder until it is published or deleted."""
    return f"{running(dataset_id)}/{attempt}"


def unfinished(dataset_id: str, version: str = "") -> str:
    """Return the folder of what interrupted builds of a version have finished; without a version, that of all."""
    folder = f"{dataset_id}/_unfinished"
    return f"{folder}/{version}" if version else folder


def manifest(attempt: str) -> str:
    """Return the manifest of an attempt, relative to the dataset."""
    return f"{BUILDS}/{attempt}/manifest.json"


def kept(attempt: str) -> str:
    """Return the file of the numbers of the records that a version keeps, relative to the dataset."""
    return f"{BUILDS}/{attempt}/kept.i64"


def shard(attempt: str, number: int) -> str:
    """Return a shard of an attempt, relative to the dataset."""
    return f"{BUILDS}/{attempt}/shard-{number:05}.array_record"


def index_of(shard_name: str) -> str:
    return shard_name.removesuffix(".array_record") + ".index"


def lengths_of(shard_name: str) -> str:
    """Return the file of lengths of a shard."""
    return shard_name.removesuffix(".array_record") + ".lengths"


def plan(attempt: str, digest: str) -> str:
    """Return the plan of packs with this digest, beside the manifest of an attempt, relative to the dataset."""
    return f"{BUILDS}/{attempt}/{digest[:32]}{_PLAN}"


def is_plan(name: str) -> bool:
    """Return whether a file beside a manifest is a plan of packs, which is made again if it is missing."""
    return name.endswith(_PLAN) and _NAME.fullmatch(name) is not None


def is_dataset_id(name: str) -> bool:
    """Return whether this is a valid name for a dataset."""
    return _NAME.fullmatch(name) is not None and name != LATEST and not name.startswith(_RESERVED_PREFIX)


def is_attempt(name: str) -> bool:
    """Return whether this is a valid name for a build attempt."""
    return _NAME.fullmatch(name) is not None


def is_made_up(attempt: str) -> bool:
    """Return whether a build or a copy made this name: a time and a random number."""
    return _MADE_UP.fullmatch(attempt) is not None


def check_attempt(name: object) -> str:
    """Return the name of a build attempt if it is valid."""
    if not isinstance(name, str) or not is_attempt(name):
        raise InvalidNameError(f"{str(name)[:200]!r} is not the name of a build attempt")
    return name


def attempt_of(name: str) -> str:
    """Return the attempt that a name, relative to the dataset, belongs to."""
    match = _FILE.fullmatch(name)
    if match is None:
        raise InvalidNameError(f"{name[:200]!r} is not the name of a file of a build attempt")
    return match[1]


def parent_of(name: str) -> str:
    """Return the folder of an object."""
    return name.rpartition("/")[0]
