"""Cache any sequential source once; then read it at random, shuffled, sharded and resumable.

Importing this package imports nothing but its errors: a public name brings its module when it is first used.
"""

import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from cachelayer.errors import (
    AlreadyExistsError,
    ArgumentsMismatchError,
    BuildRevokedError,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    DatasetNotFoundError,
    ElementError,
    ErasedRecordError,
    FormatError,
    InvalidArgumentError,
    InvalidNameError,
    InvalidTypeError,
    MissingDependencyError,
    NotFoundError,
    RecordIndexError,
    SourceError,
    StaleVersionError,
    StaleVersionWarning,
    StateError,
    StorageError,
    UnknownOptionError,
    VersionNotFoundError,
)

if TYPE_CHECKING:
    from cachelayer.access.array_record_source import ArrayRecordDataSource
    from cachelayer.access.dataref import DataRef, Mirrored
    from cachelayer.access.mix import Mixture, concat, mix
    from cachelayer.access.sampling import Sampled
    from cachelayer.access.view import Packed, Padded, View
    from cachelayer.access.wrap import wrap
    from cachelayer.builds.build_options import SubmitOptions
    from cachelayer.builds.sharded_source import Sharded, sharded
    from cachelayer.protocols import RecordSpan
    from cachelayer.records.spec import ArraySpec, AudioSpec, ImageSpec, RaggedSpec, SparseSpec
    from cachelayer.records.values import Nullable, Ragged, Sparse
    from cachelayer.storage.storage import Storage, open
    from cachelayer.streams.iterator import StreamIterator, StreamStats
    from cachelayer.streams.order.blocks import Blocks
    from cachelayer.streams.order.buckets import Buckets
    from cachelayer.streams.stream import BatchStream, Stream
    from cachelayer.versions.diff import Diff
    from cachelayer.versions.gc import Collected
    from cachelayer.versions.log import LogEvent
    from cachelayer.versions.snapshot import VersionInfo
    from cachelayer.versions.unpublished import UnpublishedBuild
    from cachelayer.versions.verify import VerifyReport

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "ArgumentsMismatchError",
    "ArrayRecordDataSource",
    "ArraySpec",
    "AudioSpec",
    "BatchStream",
    "Blocks",
    "Buckets",
    "BuildRevokedError",
    "CacheLayerError",
    "CacheLayerWarning",
    "Collected",
    "CorruptionError",
    "DataRef",
    "DatasetNotFoundError",
    "Diff",
    "ElementError",
    "ErasedRecordError",
    "FormatError",
    "ImageSpec",
    "InvalidArgumentError",
    "InvalidNameError",
    "InvalidTypeError",
    "LogEvent",
    "Mirrored",
    "MissingDependencyError",
    "Mixture",
    "NotFoundError",
    "Nullable",
    "Packed",
    "Padded",
    "Ragged",
    "RaggedSpec",
    "RecordIndexError",
    "RecordSpan",
    "Sampled",
    "Sharded",
    "SourceError",
    "Sparse",
    "SparseSpec",
    "StaleVersionError",
    "StaleVersionWarning",
    "StateError",
    "Storage",
    "StorageError",
    "Stream",
    "StreamIterator",
    "StreamStats",
    "SubmitOptions",
    "UnknownOptionError",
    "UnpublishedBuild",
    "VerifyReport",
    "VersionInfo",
    "VersionNotFoundError",
    "View",
    "concat",
    "mix",
    "open",
    "sharded",
    "wrap",
]


_HOMES = {
    "cachelayer.access.array_record_source": ("ArrayRecordDataSource",),
    "cachelayer.access.dataref": ("DataRef", "Mirrored"),
    "cachelayer.access.mix": ("Mixture", "concat", "mix"),
    "cachelayer.access.sampling": ("Sampled",),
    "cachelayer.access.view": ("Packed", "Padded", "View"),
    "cachelayer.access.wrap": ("wrap",),
    "cachelayer.builds.build_options": ("SubmitOptions",),
    "cachelayer.builds.sharded_source": ("Sharded", "sharded"),
    "cachelayer.protocols": ("RecordSpan",),
    "cachelayer.records.spec": ("ArraySpec", "AudioSpec", "ImageSpec", "RaggedSpec", "SparseSpec"),
    "cachelayer.records.values": ("Nullable", "Ragged", "Sparse"),
    "cachelayer.storage.storage": ("Storage", "open"),
    "cachelayer.streams.order.blocks": ("Blocks",),
    "cachelayer.streams.order.buckets": ("Buckets",),
    "cachelayer.streams.iterator": ("StreamIterator", "StreamStats"),
    "cachelayer.streams.stream": ("BatchStream", "Stream"),
    "cachelayer.versions.diff": ("Diff",),
    "cachelayer.versions.log": ("LogEvent",),
    "cachelayer.versions.gc": ("Collected",),
    "cachelayer.versions.snapshot": ("VersionInfo",),
    "cachelayer.versions.unpublished": ("UnpublishedBuild",),
    "cachelayer.versions.verify": ("VerifyReport",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

# A child that is forked while another thread imports would wait for ever for that import, so a fork waits for its end.
_importing = threading.RLock()
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)

if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, and keep it."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        with _importing:
            value = getattr(importlib.import_module(_HOME_OF[name]), name)
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    """Return the public names: completion does not show the packages below."""
    return [*__all__, "__version__"]
