"""Cache any sequential source once; then read it at random, shuffled, sharded and resumable."""

from cachelayer.access.array_record_source import ArrayRecordDataSource
from cachelayer.access.concat import JoinedRef, concat
from cachelayer.access.dataref import DataRef
from cachelayer.access.mirror import Mirrored
from cachelayer.access.mix import Mixture, mix
from cachelayer.access.sampling.sampled import Sampled
from cachelayer.access.sequences.packs import Packed
from cachelayer.access.sequences.padded import Padded
from cachelayer.access.sequences.windows import Windows
from cachelayer.access.stored_view import FieldsRef
from cachelayer.access.wrap import WrappedRef, wrap
from cachelayer.builds.build_options import SubmitOptions
from cachelayer.builds.sharded_source import Sharded, sharded
from cachelayer.errors import (
    AlreadyExistsError,
    ArgumentsMismatchError,
    BuildRevokedError,
    CacheLayerError,
    CacheLayerWarning,
    CorruptionError,
    DatasetNotFoundError,
    ElementError,
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
from cachelayer.records.pieces import DocumentPiece
from cachelayer.records.spec import ArraySpec, AudioSpec, ImageSpec, RaggedSpec, SparseSpec
from cachelayer.records.values import Nullable, Ragged, Sparse
from cachelayer.storage.open import open_reference as open
from cachelayer.storage.storage import Storage
from cachelayer.streams.block_order import Blocks
from cachelayer.streams.buckets import Buckets
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.stream import Stream
from cachelayer.versions.diff import Diff
from cachelayer.versions.history import LogEvent
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.verify import VerifyReport

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "ArgumentsMismatchError",
    "ArrayRecordDataSource",
    "ArraySpec",
    "AudioSpec",
    "Blocks",
    "Buckets",
    "BuildRevokedError",
    "CacheLayerError",
    "CacheLayerWarning",
    "CorruptionError",
    "DataRef",
    "DatasetNotFoundError",
    "Diff",
    "DocumentPiece",
    "ElementError",
    "FieldsRef",
    "FormatError",
    "ImageSpec",
    "InvalidArgumentError",
    "InvalidNameError",
    "InvalidTypeError",
    "JoinedRef",
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
    "SubmitOptions",
    "UnknownOptionError",
    "VerifyReport",
    "VersionInfo",
    "VersionNotFoundError",
    "Windows",
    "WrappedRef",
    "concat",
    "mix",
    "open",
    "sharded",
    "wrap",
]


def __dir__() -> list[str]:
    """Return the public names: completion does not show the packages below."""
    return [*__all__, "__version__"]
