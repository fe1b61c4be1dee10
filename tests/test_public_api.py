"""What users may rely on."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import cachelayer
from cachelayer import errors

PUBLIC = [
    "AlreadyExistsError",
    "ArgumentsMismatchError",
    "ArrayRecordDataSource",
    "ArraySpec",
    "AudioSpec",
    "BuildRevokedError",
    "CacheLayerError",
    "CacheLayerWarning",
    "CorruptionError",
    "DataRef",
    "DatasetNotFoundError",
    "Diff",
    "ElementError",
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
    "Ragged",
    "RaggedSpec",
    "RecordIndexError",
    "Report",
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
    "UnknownOptionError",
    "VersionInfo",
    "VersionNotFoundError",
    "WrappedRef",
    "concat",
    "mix",
    "open",
    "sharded",
    "wrap",
]

BUILT_IN = {
    "InvalidArgumentError": ValueError,
    "InvalidNameError": ValueError,
    "ArgumentsMismatchError": ValueError,
    "UnknownOptionError": TypeError,
    "StaleVersionError": ValueError,
    "InvalidTypeError": TypeError,
    "MissingDependencyError": ImportError,
    "NotFoundError": KeyError,
    "DatasetNotFoundError": KeyError,
    "VersionNotFoundError": KeyError,
    "RecordIndexError": IndexError,
    "AlreadyExistsError": FileExistsError,
    "ElementError": ValueError,
    "SourceError": RuntimeError,
    "BuildRevokedError": RuntimeError,
    "StateError": ValueError,
    "FormatError": ValueError,
    "CorruptionError": OSError,
    "StorageError": OSError,
}


def test_the_public_names_are_these() -> None:
    assert sorted(cachelayer.__all__) == sorted(PUBLIC)
    assert all(hasattr(cachelayer, name) for name in PUBLIC)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_error_is_of_the_tree_and_the_built_in_that_fits(name: str) -> None:
    assert issubclass(getattr(cachelayer, name), (cachelayer.CacheLayerError, BUILT_IN[name]))
    assert issubclass(getattr(cachelayer, name), BUILT_IN[name])


def test_the_whole_tree_is_public_and_known() -> None:
    tree = {name for name, cls in vars(errors).items() if inspect.isclass(cls) and cls.__module__ == errors.__name__}
    assert tree - {"CacheLayerError", "CacheLayerWarning", "StaleVersionWarning"} == set(BUILT_IN)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_thing_says_what_it_promises(name: str) -> None:
    thing = getattr(cachelayer, name)
    assert inspect.getdoc(thing)
    for method, member in inspect.getmembers(thing, inspect.isfunction):
        if not method.startswith("_") and member.__module__.startswith("cachelayer"):
            assert inspect.getdoc(member), f"{name}.{method}"


def test_importing_it_imports_no_framework() -> None:
    heavy = [
        "tensorflow",
        "torch",
        "jax",
        "grain",
        "orbax",
        "fsspec",
        "pandas",
        "pyarrow",
        "array_record",
        "tqdm",
        "zstandard",
    ]
    code = f"import sys, cachelayer; print([name for name in {heavy!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
