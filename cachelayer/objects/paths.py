"""The names of all objects of a dataset, and the grammar of the names that users choose.

::

    <root>/<dataset id>/_log/0000000001.json            an entry of the log
    <root>/<dataset id>/_log/head                       the number of the last entry, or of an earlier one
    <root>/<dataset id>/_log/reserve                    room for entries on a disk that is full, on a file system
    <root>/<dataset id>/shards/<file>.array_record      a shard, beside it <file>.index and <file>.lengths
    <root>/<dataset id>/shards/<file>.npy               columns that were added to a version, a row for each record
    <root>/<dataset id>/manifests/<file>.json           the manifest of a version, beside it <file>.i64: the records
                                                        that it keeps of its shards; in a bucket <file>.indices too: the
                                                        indices of its shards, if they are small
    <root>/<dataset id>/plans/<digest>/<digest>.plan    a plan of views of a version: which documents share a
                                                        row, or which records a series
    <root>/<dataset id>/_builds/<version>/              notes and leases of the builds of a version
    <root>/<dataset id>/_tmp/                           shards that are being written, on a file system

``<file>`` is ``<hash of the content>-<generation>``: the name tells the content, and when the file was put. A dataset
is a folder: all names in this module, in the log and in manifests are relative to it, and use ``/``.
"""

from __future__ import annotations

import re

from cachelayer.errors import InvalidNameError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FILE = re.compile(r"(shards|manifests)/[0-9a-f]{32}-(0|[1-9][0-9]{0,18})", re.ASCII)
_RESERVED_PREFIX = "sha256"
LATEST = "latest"
_IN_DATASET = re.compile(
    r"(.*?/|)(?:_log/\d{10}\.json|_builds/[^/]+/(?:[^/]*[.])?claim$|_builds/.*/[0-9a-f]{32}/|_tmp/|(?:shards|manifests)/[0-9a-f]{32}-\d+\.)",
    re.ASCII,
)
"""The path of a file of a dataset, whose first group is the folder of the dataset."""
SHARDS = "shards"
MANIFESTS = "manifests"
PLANS = "plans"
BUILDS = "_builds"
LOG = "_log"
WORKING = "_tmp"
LOG_HEAD = f"{LOG}/head"
"""The object with the number of the last entry of the log, or of an earlier one."""
LOG_RESERVE = f"{LOG}/reserve"


def check_name(kind: str, name: object) -> str:
    """Return the name of a ``dataset id``, a ``version`` or a ``tag`` if it is valid."""
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
    """Return a valid name for an object that is no str: ``v1`` for ``1``."""
    text = re.sub(r"[^A-Za-z0-9._-]+", "-", str(name)).strip("-._")
    return f"v{text}" if text.isdigit() else text[:20] or "v1"


def is_dataset_id(name: str) -> bool:
    """Return whether this is a valid name for a dataset."""
    return _NAME.fullmatch(name) is not None and name != LATEST and not name.startswith(_RESERVED_PREFIX)


def dataset_folder(path: str) -> str | None:
    """Return the folder, with a slash, of the dataset that has a file at this path; None if the path is no such."""
    match = _IN_DATASET.match(path)
    return None if match is None else match[1]


def log_entry(sequence: int) -> str:
    return f"{LOG}/{sequence:010}.json"


def file(folder: str, content: str, generation: int) -> str:
    """Return the name of a file without its suffix, from the hash of its content and the generation of its put."""
    return f"{folder}/{content[:32]}-{generation}"


def is_file(name: str) -> bool:
    """Return whether a name is one that :func:`file` returns."""
    return _FILE.fullmatch(name) is not None


def generation_of(name: str) -> int:
    """Return the generation in the name of a file, without its suffix."""
    return int(name.rpartition("-")[2])


def content_of(name: str) -> str:
    """Return the name of a file without its generation."""
    return name.rpartition("-")[0]


def shard(name: str) -> str:
    return f"{name}.array_record"


def column(name: str) -> str:
    """Return the file of columns that were added to a version."""
    return f"{name}.npy"


def index_of(shard_name: str) -> str:
    return shard_name.removesuffix(".array_record") + ".index"


def lengths_of(shard_name: str) -> str:
    """Return the file of lengths of a shard."""
    return shard_name.removesuffix(".array_record") + ".lengths"


def manifest(name: str) -> str:
    return f"{name}.json"


def kept_numbers(name: str) -> str:
    """Return the file of the numbers of the records that a version keeps."""
    return f"{name}.i64"


def indices(name: str) -> str:
    """Return the file of the indices of all shards of a version."""
    return f"{name}.indices"


def plan(version_digest: str, digest: str) -> str:
    """Return the plan with this digest, by the digest of its version."""
    return f"{PLANS}/{version_digest[:32]}/{digest[:32]}.plan"


def builds(version: str) -> str:
    """Return the folder of the builds of a version."""
    return f"{BUILDS}/{version}"
