"""Cache any sequential source once; then read it at random, shuffled, sharded and resumable.

::

    source ──cache──> Storage ──fetch──> DataRef ──stream──> Stream ──iter──> StreamIterator ──next──> batch
                      shards, log        ref[i], digest      stream[step]     state: digest, position

A :class:`Storage` is a folder or a bucket, with versions that never change. A :class:`DataRef` is one of them, a
sequence of elements that its digest identifies; a :class:`View` is some of its records. A :class:`Stream` is their
order in steps, the same on any number of hosts. Its iterator hands out batches. Its state, a small JSON value, names
the records, their order and the position where the next step begins. An iterator over these goes on from there.

    >>> import tempfile, numpy as np, cachelayer
    >>> storage = cachelayer.Storage(tempfile.mkdtemp())  # or gs://bucket/caches, s3://, az://
    >>> ref = storage.cache(lambda: {"label": np.arange(1000)}, "numbers@v1")  # later calls open it
    >>> len(ref), ref[17], ref.digest == storage.fetch("numbers@v1").digest
    (1000, {'label': np.int64(17)}, True)
    >>> stream = ref.stream(256, shuffle=True, seed=0, num_epochs=3)
    >>> iterator = iter(stream)
    >>> batch = next(iterator)
    >>> state = iterator.get_state()
    >>> state["position"], np.array_equal(next(iterator)["label"], stream[1]["label"])
    (256, True)
    >>> iterator.set_state(state)  # the next batch is that of step 1 again

Importing this package imports nothing but its errors: a public name brings its module when it is first used.
"""

# A name that is exported is imported as itself, all of a module in one line.
# ruff: noqa: I001

import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from cachelayer.errors import (
    AlreadyExistsError as AlreadyExistsError,
    ArgumentsMismatchError as ArgumentsMismatchError,
    BuildRevokedError as BuildRevokedError,
    BusyError as BusyError,
    CacheLayerError as CacheLayerError,
    CacheLayerWarning as CacheLayerWarning,
    CorruptionError as CorruptionError,
    DatasetNotFoundError as DatasetNotFoundError,
    DigestMismatchError as DigestMismatchError,
    ElementError as ElementError,
    ErasedRecordError as ErasedRecordError,
    FormatError as FormatError,
    InvalidArgumentError as InvalidArgumentError,
    InvalidNameError as InvalidNameError,
    InvalidTypeError as InvalidTypeError,
    MissingDependencyError as MissingDependencyError,
    NotFoundError as NotFoundError,
    RecordIndexError as RecordIndexError,
    RefusedError as RefusedError,
    SourceError as SourceError,
    StaleVersionError as StaleVersionError,
    StaleVersionWarning as StaleVersionWarning,
    StateError as StateError,
    StorageError as StorageError,
    UnknownOptionError as UnknownOptionError,
    VersionNotFoundError as VersionNotFoundError,
)

if TYPE_CHECKING:
    from cachelayer.datasets.array_record_source import ArrayRecordDataSource as ArrayRecordDataSource
    from cachelayer.views.dataref import DataRef as DataRef
    from cachelayer.datasets.local_copies import Mirrored as Mirrored
    from cachelayer.views.mix import Mixture as Mixture, concat as concat, mix as mix
    from cachelayer.views.sampling import Sampled as Sampled
    from cachelayer.views.view import Packed as Packed, Padded as Padded, Rolling as Rolling, View as View
    from cachelayer.views.wrap import wrap as wrap
    from cachelayer.builds.build_options import SubmitOptions as SubmitOptions
    from cachelayer.builds.sharded_source import Sharded as Sharded, sharded as sharded
    from cachelayer.support.counting import counters as counters
    from cachelayer.protocols import RecordSpan as RecordSpan, Sources as Sources
    from cachelayer.specs.spec import (
        ArraySpec as ArraySpec,
        AudioSpec as AudioSpec,
        ImageSpec as ImageSpec,
        JsonSpec as JsonSpec,
        NullableDict as NullableDict,
        RaggedSpec as RaggedSpec,
        SparseSpec as SparseSpec,
        VideoSpec as VideoSpec,
    )
    from cachelayer.specs.values import Nullable as Nullable, Ragged as Ragged, Sparse as Sparse
    from cachelayer.records.video import Video as Video
    from cachelayer.storage.storage import Storage as Storage, open as open
    from cachelayer.streams.epochwise import Epochs as Epochs
    from cachelayer.streams.iterator import StreamIterator as StreamIterator
    from cachelayer.streams.order.blocks import Blocks as Blocks
    from cachelayer.streams.order.buckets import Buckets as Buckets
    from cachelayer.streams.reading.failures import Failure as Failure
    from cachelayer.streams.stream import BatchStream as BatchStream, Stream as Stream
    from cachelayer.streams.stream_stats import ReadingStats as ReadingStats, StreamStats as StreamStats
    from cachelayer.versions.diff import Diff as Diff, RowDiff as RowDiff, ValueChange as ValueChange
    from cachelayer.versions.gc import Collected as Collected
    from cachelayer.versions.log import LogEvent as LogEvent
    from cachelayer.versions.copy import RepairReport as RepairReport
    from cachelayer.versions.snapshot import VersionInfo as VersionInfo
    from cachelayer.versions.notes import UnpublishedBuild as UnpublishedBuild
    from cachelayer.versions.verify import DamagedObject as DamagedObject
    from cachelayer.versions.verify import VerifyReport as VerifyReport

__version__ = "0.1.0"

_HOMES = {
    "cachelayer.datasets.array_record_source": ("ArrayRecordDataSource",),
    "cachelayer.views.dataref": ("DataRef",),
    "cachelayer.datasets.local_copies": ("Mirrored",),
    "cachelayer.views.mix": ("Mixture", "concat", "mix"),
    "cachelayer.views.sampling": ("Sampled",),
    "cachelayer.views.view": ("Packed", "Padded", "Rolling", "View"),
    "cachelayer.views.wrap": ("wrap",),
    "cachelayer.builds.build_options": ("SubmitOptions",),
    "cachelayer.builds.sharded_source": ("Sharded", "sharded"),
    "cachelayer.support.counting": ("counters",),
    "cachelayer.protocols": ("RecordSpan", "Sources"),
    "cachelayer.specs.spec": (
        "ArraySpec",
        "AudioSpec",
        "ImageSpec",
        "JsonSpec",
        "NullableDict",
        "RaggedSpec",
        "SparseSpec",
        "VideoSpec",
    ),
    "cachelayer.specs.values": ("Nullable", "Ragged", "Sparse"),
    "cachelayer.records.video": ("Video",),
    "cachelayer.storage.storage": ("Storage", "open"),
    "cachelayer.streams.order.blocks": ("Blocks",),
    "cachelayer.streams.order.buckets": ("Buckets",),
    "cachelayer.streams.epochwise": ("Epochs",),
    "cachelayer.streams.iterator": ("StreamIterator",),
    "cachelayer.streams.reading.failures": ("Failure",),
    "cachelayer.streams.stream": ("BatchStream", "Stream"),
    "cachelayer.streams.stream_stats": ("ReadingStats", "StreamStats"),
    "cachelayer.versions.diff": ("Diff", "RowDiff", "ValueChange"),
    "cachelayer.versions.log": ("LogEvent",),
    "cachelayer.versions.gc": ("Collected",),
    "cachelayer.versions.copy": ("RepairReport",),
    "cachelayer.versions.snapshot": ("VersionInfo",),
    "cachelayer.versions.notes": ("UnpublishedBuild",),
    "cachelayer.versions.verify": ("DamagedObject", "VerifyReport"),
}
"""The modules that public names come from; type checkers read the imports above."""
_PACKAGES = ("engines", "testing")
"""Packages that are imported when they are first used; outside of ``__all__``, because ``testing`` needs pytest."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = sorted([*_HOME_OF, *(name for name in globals() if name.endswith(("Error", "Warning")))])

# A child that is forked while another thread imports would wait for ever for that import, so a fork waits for its end.
_importing = threading.RLock()
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)

if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, and keep it."""
        if name in _PACKAGES:
            with _importing:
                return importlib.import_module(f"{__name__}.{name}")
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        with _importing:
            value = getattr(importlib.import_module(_HOME_OF[name]), name)
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    """Return the public names: completion does not show the packages below."""
    return [*__all__, "__version__"]
