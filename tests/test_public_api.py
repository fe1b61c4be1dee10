"""What users may rely on."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import public_names
import pytest
from optional_packages import OPTIONAL
from repository import ROOT

import cachelayer
from cachelayer import errors
from cachelayer.objects import paths
from cachelayer.support.logs import LoggerName

PUBLIC = [
    "AlreadyExistsError", "ArgumentsMismatchError", "ArrayRecordDataSource", "ArraySpec",
    "AudioSpec", "BatchStream", "Blocks", "Buckets", "BuildRevokedError", "BusyError", "CacheLayerError",
    "CacheLayerWarning",
    "Collected", "CorruptionError", "DamagedObject", "DataRef", "DatasetNotFoundError", "Diff", "DigestMismatchError",
    "ElementError", "Epochs",
    "ErasedRecordError", "Failure", "FormatError", "ImageSpec", "InvalidArgumentError", "InvalidNameError",
    "InvalidTypeError", "JsonSpec", "LogEvent", "Mirrored", "MissingDependencyError", "Mixture", "NotFoundError",
    "Nullable", "NullableDict", "Packed", "Padded", "Ragged", "RaggedSpec", "ReadingStats", "RecordIndexError",
    "RecordSpan", "RefusedError", "RepairReport", "Rolling", "RowDiff",
    "Sampled", "Sharded",
    "SourceError", "Sources", "Sparse", "SparseSpec", "StaleVersionError", "StaleVersionWarning", "StateError",
    "Storage", "StorageError", "Stream", "StreamIterator", "StreamStats", "SubmitOptions", "UnknownOptionError",
    "UnpublishedBuild", "ValueChange",
    "VerifyReport", "VersionInfo", "VersionNotFoundError", "Video", "VideoSpec", "View", "concat",
    "counters", "mix", "open", "sharded", "wrap",
]  # fmt: skip

VIEW = (
    "clips decoded diff digest each element_spec erased exclude fields folds head lengths metadata "
    "packed padded read reference rolling sample select sources split stream to_arrow total verify "
    "where windows"
)
ATTRIBUTES = {
    "Storage": (
        "add_columns append builds cache cacheable copy datasets delete derive diff erase fetch gc history "
        "repair rewrite submit tag tags untag url verify versions"
    ),
    "DataRef": (
        "clips count_by dataset_id dataset_version decoded diff digest each element_spec erased exclude "
        "fields folds head lengths metadata mirror nbytes packed padded provenance raw read reference "
        "rolling sample select sources split stats stored_nbytes stream to_arrow total verify where windows"
    ),
    "View": VIEW,
    "Packed": f"{VIEW} fill",
    "Padded": f"{VIEW} kept",
    "Rolling": f"{VIEW} series short_series",
    "Sampled": "digest element_spec reference stream",
    "Mixture": "digest element_spec reference stream",
    "Stream": "count element_spec epoch epochs map map_batches record_numbers sources state with_state without",
    "StreamIterator": "advance_to failures get_state load position save set_state stats",
}

BUILT_IN: dict[type[Exception], str] = {
    ValueError: (
        "InvalidArgumentError InvalidNameError ArgumentsMismatchError DigestMismatchError RefusedError "
        "StaleVersionError ElementError StateError FormatError"
    ),
    TypeError: "UnknownOptionError InvalidTypeError",
    ImportError: "MissingDependencyError",
    KeyError: "NotFoundError DatasetNotFoundError VersionNotFoundError",
    IndexError: "RecordIndexError",
    LookupError: "ErasedRecordError",
    FileExistsError: "AlreadyExistsError",
    RuntimeError: "SourceError BuildRevokedError",
    OSError: "CorruptionError StorageError BusyError",
}


def test_the_public_names_are_these() -> None:
    assert sorted(cachelayer.__all__) == sorted(PUBLIC)
    assert all(hasattr(cachelayer, name) for name in PUBLIC)
    # Completion shows them only.
    assert sorted(dir(cachelayer)) == sorted([*PUBLIC, "__version__"])


def test_every_error_is_public_of_the_tree_and_the_built_in_that_fits() -> None:
    for built_in, names in BUILT_IN.items():
        for name in names.split():
            assert issubclass(getattr(cachelayer, name), cachelayer.CacheLayerError)
            assert issubclass(getattr(cachelayer, name), built_in)
    tree = {name for name, cls in vars(errors).items() if inspect.isclass(cls) and cls.__module__ == errors.__name__}
    assert tree - {"CacheLayerError", "CacheLayerWarning", "StaleVersionWarning"} == set(
        " ".join(BUILT_IN.values()).split()
    )


def test_the_tree_of_errors_in_the_docstring_is_that_of_the_classes() -> None:
    tree = errors.__doc__ or ""
    names = re.findall(r"^    ([│├└─ ]*)(\w+(?:Error|Warning))\b(?: +([A-Z]\w+(?:Error|Warning)))?", tree, re.MULTILINE)
    parents: dict[int, type] = {}
    for indent, name, built_in in names:
        cls = getattr(errors, name)
        bases = [parents[len(indent) - 4]] if indent else []
        if built_in:
            bases.append(getattr(builtins, built_in))
        assert cls.__bases__ == tuple(bases or [Exception])
        parents[len(indent)] = cls
    classes = {name for name, cls in vars(errors).items() if inspect.isclass(cls) and cls.__module__ == errors.__name__}
    assert sorted(name for _, name, _ in names) == sorted(classes)


def test_the_docstring_of_the_counters_names_each() -> None:
    assert set(re.findall(r"``(\w+)``", cachelayer.counters.__doc__ or "")) == set(cachelayer.counters())


def test_the_loggers_of_the_page_are_those_of_the_library() -> None:
    page = (ROOT / "docs" / "howto-watch.md").read_text()
    assert re.findall(r"^\| `cachelayer\.(\w+)` \|", page, re.MULTILINE) == list(get_args(LoggerName))


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_public_attributes_are_these_and_each_says_what_it_promises(name: str) -> None:
    cls = getattr(cachelayer, name)
    found = [attribute for attribute in dir(cls) if not attribute.startswith("_")]
    assert found == sorted(ATTRIBUTES[name].split())
    assert all(inspect.getdoc(inspect.getattr_static(cls, attribute)) for attribute in found)


def test_the_page_of_the_command_line_lists_the_environment_variables() -> None:
    sources = [path for folder in ("cachelayer", "adapters") for path in (ROOT / folder).rglob("*.py")]
    used = {name for path in sources for name in re.findall(r'"(CACHELAYER_\w+)"', path.read_text())}
    page = (ROOT / "docs" / "cli.md").read_text()
    # Builds set this one for the processes that they start.
    assert set(re.findall(r"^\| `(CACHELAYER_\w+)` \|", page, re.MULTILINE)) == used


CLASSES = [name for name, obj in public_names.exported().items() if obj.is_class and name.count(".") == 1]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_no_public_member_that_the_docs_do_not_show_and_says_what_it_is(name: str) -> None:
    cls = getattr(cachelayer, name.removeprefix("cachelayer."))
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cachelayer")]
    members = {member for base in ours for member in vars(base) if not member.startswith("_")}
    fields = {field for base in ours for field in vars(base).get("__annotations__", {})}
    assert members - fields == public_names.methods(public_names.exported()[name]).keys()
    assert cls.__repr__ is not object.__repr__


def test_what_is_made_has_no_public_attributes_but_those_of_its_class(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    ref = storage.submit([1, 2], "a@v1")
    joined, wrapped = cachelayer.concat([ref, ref]), cachelayer.wrap([1], identity="one")
    stream = ref.stream()
    made: list[object] = [storage, ref, joined, wrapped, cachelayer.mix([(ref, 1)]), stream, iter(stream)]
    for thing in made:
        assert {attribute for attribute in vars(thing) if not attribute.startswith("_")} <= {"digest"}


def printed(code: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_it_imports_nothing_but_its_errors() -> None:
    code = "import sys; before = set(sys.modules); import cachelayer; print(*sorted(set(sys.modules) - before))"
    imported = printed(code).split()
    assert [name for name in imported if name.startswith("cachelayer")] == ["cachelayer", "cachelayer.errors"]
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names | {"cachelayer"}
    assert {"asyncio", "ctypes", "dataclasses", "importlib.metadata", "multiprocessing"}.isdisjoint(imported)


def test_using_every_public_name_imports_no_framework() -> None:
    heavy = sorted(OPTIONAL | {"array_record", "asyncio", "fsspec", "importlib.metadata", "tqdm", "click", "zstandard"})
    code = f"import sys; from cachelayer import *; print([name for name in {heavy!r} if name in sys.modules])"
    assert printed(code) == "[]"


def test_a_public_name_is_that_of_the_module_that_type_checkers_read_it_from() -> None:
    [of_checkers] = [
        node.body
        for node in ast.parse(inspect.getsource(cachelayer)).body
        if isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test)
        and "not" not in ast.unparse(node.test)
    ]
    imports = [node for node in of_checkers if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names}
    assert homes.keys() | vars(errors).keys() >= set(PUBLIC)
    for name, module in homes.items():
        assert getattr(cachelayer, name) is getattr(importlib.import_module(str(module)), name)


def test_the_packages_that_users_import_from_are_there_when_they_are_asked_for() -> None:
    assert printed(
        "import cachelayer; print(cachelayer.engines.Ray.__name__, cachelayer.testing.StoreTests.__name__)"
    ) == ("Ray StoreTests")
    code = "import sys; sys.modules['pytest'] = None; import cachelayer; from cachelayer import *; cachelayer.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingDependencyError: cachelayer.testing needs pytest" in done.stderr


def test_a_name_that_is_not_public_is_an_attribute_error_that_suggests_one() -> None:
    with pytest.raises(AttributeError, match="'cachelayer'") as failed:
        cachelayer.Storge  # noqa: B018
    assert (failed.value.name, failed.value.obj) == ("Storge", cachelayer)


def test_threads_that_use_it_first_get_the_same_class() -> None:
    code = """
import threading, cachelayer
names, start, found = ["Storage", "DataRef", "Stream", "concat"], threading.Barrier(8), []
def use(name):
    start.wait()
    found.append(getattr(cachelayer, name))
threads = [threading.Thread(target=use, args=[name]) for name in names * 2]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(found), set(found) == {getattr(cachelayer, name) for name in names})
"""
    assert printed(code) == "8 True"


@pytest.mark.parametrize(("name", "suggested"), [(1, "v1"), (Path("/data/digits"), "data-digits"), (2.5, "2.5")])
def test_a_name_that_is_no_str_is_refused_with_one_to_pass(name: object, suggested: str) -> None:
    with pytest.raises(errors.InvalidNameError, match=f"pass a str, such as '{suggested}'"):
        paths.check_name("version", name)
