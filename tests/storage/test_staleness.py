"""What a version is compared with when it is asked for again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage
from cachelayer.adapters.folders import from_files


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


class Row:
    """Rows of a user's class, which counts how often it is iterated."""

    def __init__(self, name: str, options: dict[str, Any] | None = None) -> None:
        self.name = name
        self.options = options
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        self.read += 1
        yield self.name

    def rows(self) -> list[str]:
        self.read += 1
        return [self.name]


class Called(Row):
    """An object that is called."""

    def __call__(self) -> list[str]:
        return self.rows()


def scaled(count: int, scale: int = 2) -> list[int]:
    return [number * scale for number in range(count)]


def times(scale: int) -> Callable[[], list[int]]:
    return lambda: [number * scale for number in range(3)]


N = 1000
CHANGES: dict[str, tuple[Any, Any, str]] = {
    "array": (np.arange(N), np.arange(N) + 1, "elements changed"),
    "the last row": (np.arange(N), np.where(np.arange(N) == N - 1, 0, np.arange(N)), "elements changed"),
    "dtype": (np.arange(N), np.arange(N, dtype=np.int32), "elements changed"),
    "length": (np.arange(N), np.arange(N + 1), f"length was {N} and is {N + 1}"),
    "list": (["a", "b"], ["a", "c"], "elements changed"),
    "partial argument": (
        functools.partial(scaled, 3),
        functools.partial(scaled, 4),
        "argument count was 3 and is 4",
    ),
    "closure": (times(2), times(3), "scale was 2 and is 3"),
    "another function": (times(2), functools.partial(scaled, 3), "scaled is new"),
    "iterable": (Row("a"), Row("b"), "attribute name changed"),
    "method": (Row("a").rows, Row("b").rows, "attribute name changed"),
    "class": (Row("a").rows, Called("a").rows, "Called.__call__ is new"),
}


def changed_frame(library: str) -> tuple[Any, list[Any]]:
    """Return a table, and tables of as many rows that differ from it."""
    columns = {"x": np.arange(N), "y": np.arange(N) / 2}
    last = {**columns, "x": np.where(columns["x"] == N - 1, 0, columns["x"])}
    others = [
        last,
        {**columns, "y": columns["y"] + 1},
        {**columns, "y": columns["y"].astype("f4")},
        {**columns, "z": columns["x"]},
        {"x": columns["x"]},
        {**columns, "x": [None] * N},
    ]
    module = pytest.importorskip(library)
    make = {
        "pandas": lambda module: module.DataFrame,
        "polars": lambda module: module.DataFrame,
        "pyarrow": lambda module: module.table,
        "datasets": lambda module: module.Dataset.from_dict,
    }[library](module)
    return make(columns), [make(other) for other in others]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow", "datasets"])
def test_a_frame_with_other_values_or_columns_is_noticed(storage: Storage, library: str) -> None:
    frame, others = changed_frame(library)
    built = storage.cache(frame, "d", "v1")
    assert storage.cache(frame, "d", "v1", on_change="error").digest == built.digest
    for other in others:
        with pytest.raises(cachelayer.StaleVersionError, match="elements changed"):
            storage.cache(other, "d", "v1", on_change="error")
    with pytest.warns(cachelayer.StaleVersionWarning, match="elements changed"):
        assert storage.cache(others[1], "d", "v1").digest == built.digest


def test_the_same_table_in_other_memory_is_no_change(storage: Storage, tmp_path: Path) -> None:
    datasets, pa = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    columns = {"x": list(range(N)), "words": [["a"] * (row % 3) for row in range(N)]}
    table, dataset = pa.table(columns), datasets.Dataset.from_dict(columns)
    dataset.save_to_disk(tmp_path / "saved")
    storage.cache(table, "table", "v1")
    storage.cache(dataset, "dataset", "v1")
    for same in (pa.concat_tables([table[:3], table[3:]]), pa.concat_tables([table, table])[N:]):
        storage.cache(same, "table", "v1", on_change="error")
    for same in (datasets.load_from_disk(tmp_path / "saved"), dataset.with_format("numpy"), dataset.select(range(N))):
        storage.cache(same, "dataset", "v1", on_change="error")
    with pytest.raises(cachelayer.StaleVersionError, match="elements changed"):
        storage.cache(dataset.select(range(N)[::-1]), "dataset", "v1", on_change="error")


@pytest.mark.parametrize("name", CHANGES)
def test_a_version_that_was_built_from_something_else_is_used_with_one_warning(storage: Storage, name: str) -> None:
    before, after, expected = CHANGES[name]
    built = storage.cache(before, "d", "v1")
    assert storage.cache(before, "d", "v1").digest == built.digest
    with pytest.warns(cachelayer.StaleVersionWarning, match=f"d@v1 was built .*{expected}.*on_change=") as caught:
        digests = {storage.cache(after, "d", "v1").digest for _ in range(2)}
    assert digests == {built.digest}
    assert [warning.filename for warning in caught] == [__file__]
    assert storage.cache(after, "d", "v1", on_change="ignore").digest == built.digest
    with pytest.raises(cachelayer.StaleVersionError, match=expected):
        storage.cache(after, "d", "v1", on_change="error")
    assert storage.cache(before, "d", "v1", on_change="error").digest == built.digest


def test_what_is_the_same_is_no_warning(storage: Storage) -> None:
    storage.cache(functools.partial(scaled, 3), "d", "v1")
    storage.cache(functools.partial(scaled, count=3), "d", "v1", on_change="error")


def test_nothing_is_called_or_iterated_to_compare(storage: Storage) -> None:
    def never() -> Any:
        raise AssertionError

    def generated() -> Iterator[int]:
        raise AssertionError
        yield 1

    class Iterated:
        def __iter__(self) -> Iterator[int]:
            raise AssertionError

    storage.cache([1, 2, 3], "d", "v1")
    for source in (never, generated, generated(), Iterated(), map(never, [1])):
        storage.cache(source, "d", "v1", on_change="error")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_records": 3}, "max_records was None and is 3"),
        ({"unbatch": True}, "unbatch was False and is True"),
        ({"on_error": "skip"}, "on_error was 'raise' and is 'skip'"),
        ({"element_spec": np.int32}, "element_spec changed"),
    ],
)
def test_options_that_decide_the_records_are_compared(storage: Storage, options: Any, expected: str) -> None:
    storage.cache(functools.partial(scaled, 5), "d", "v1")
    with pytest.raises(cachelayer.StaleVersionError, match=f"with other options: {expected}"):
        storage.cache(functools.partial(scaled, 5), "d", "v1", on_change="error", **options)


def test_versions_that_are_made_of_others_are_not_compared(storage: Storage) -> None:
    storage.cache([1, 2], "d", "v1")
    storage.append("d", "v1", "v2", [3])
    storage.derive("d", "v1", "v3", keep=[0])
    for version in ("v2", "v3"):
        storage.cache([7, 8, 9, 10], "d", version, on_change="error")


class Numbers(Sequence[int]):
    """A sequence of a user's class."""

    def __init__(self, numbers: list[int], *, can_be_read: bool = True) -> None:
        self.numbers = numbers
        self.read = lambda number: numbers[number] if can_be_read else pytest.fail("it was read")

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: Any) -> int:
        return self.read(number)


def test_of_a_users_sequence_the_code_and_the_attributes_are_compared_and_nothing_is_read(storage: Storage) -> None:
    storage.cache(Numbers([1, 2, 3]), "d", "v1")
    storage.cache(Numbers([1, 2, 3]), "d", "v1", on_change="error")
    with pytest.raises(cachelayer.StaleVersionError, match="attribute numbers"):
        storage.cache(Numbers([1, 2, 4], can_be_read=False), "d", "v1", on_change="error")


def test_a_version_of_other_hosts_files_is_no_warning(storage: Storage, tmp_path: Path) -> None:
    folder, copy = tmp_path / "files", tmp_path / "copy"
    for each in (folder, copy):
        each.mkdir()
        (each / "a.txt").write_text("a")
    storage.cache(from_files(folder), "d", "v1")
    storage.cache(from_files(folder), "d", "v1", on_change="error")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "another")
        storage.cache(from_files(copy), "d", "v1", on_change="error")
    (folder / "a.txt").write_text("ab")
    with pytest.raises(cachelayer.StaleVersionError, match="files_nbytes"):
        storage.cache(from_files(folder), "d", "v1", on_change="error")
    (folder / "a.txt").unlink()
    with pytest.warns(cachelayer.CacheLayerWarning, match="without comparing all of its source"):
        storage.cache(from_files(folder), "d", "v1")


MARK = "hunter2"
SECRETS = """
import functools

BOTH = (1, "{mark}")
TEXT = "{mark}" * 100
HEADERS = {{"Authorization": ["Bearer {mark}"]}}

class Reader:
    def __init__(self, password, headers):
        self.password = password
        self.headers = headers
    def rows(self, count=1):
        return [len(self.password)] * count
    def __iter__(self):
        return iter(self.rows())

def plain(): return [TEXT, BOTH] and [1]
def positional(url, nested, *, auth=None): return [1]
def defaults(key=TEXT, *, auth={{"a": ["{mark}"]}}): return [1]
def closed(key, both):
    def inner(): return [key, both] and [1]
    return inner
def part(key, index, count): return [index, len(key)]

SOURCES = {{
    "module constants": plain,
    "partial": functools.partial(positional, "https://x:{mark}@host/?sig={mark}", HEADERS, auth=("u", "{mark}")),
    "defaults": defaults,
    "closure": closed("{mark}", ("{mark}", 1)),
    "iterable": Reader("{mark}", HEADERS),
    "partial of a method": functools.partial(Reader("{mark}", HEADERS).rows, count=3),
}}
"""


def module_of(folder: Path, mark: str) -> dict[str, Any]:
    text = SECRETS.format(mark=mark)
    path = folder / f"{mark}.py"
    path.write_text(text)
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(text, str(path), "exec"), names)
    return names


def written(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("modules")
    return module_of(folder, MARK), module_of(folder, "another")


@pytest.mark.parametrize(
    "name", ["module constants", "partial", "defaults", "closure", "iterable", "partial of a method"]
)
def test_no_secret_is_written_anywhere_and_one_that_changed_is_noticed(
    storage: Storage, name: str, modules: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    before, after = (module["SOURCES"][name] for module in modules)
    storage.cache(before, "d", "v1")
    storage.cache(before, "d", "v1", on_change="error")
    assert MARK.encode() not in written(tmp_path / "storage")
    with pytest.raises(cachelayer.StaleVersionError) as caught:
        storage.cache(after, "d", "v1", on_change="error")
    assert MARK not in str(caught.value)


def test_no_secret_is_written_while_a_build_is_unfinished(
    storage: Storage, modules: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path
) -> None:
    def failing(function: Callable[..., Any], *args: Any) -> Iterator[Any]:
        function(*args)
        yield from range(100_000)
        raise OSError

    source = functools.partial(failing, modules[0]["positional"], f"s3://x:{MARK}@host", {"Authorization": [MARK]})
    with pytest.raises(cachelayer.SourceError):
        storage.cache(source, "d", "v1", shard_bytes=20_000)
    assert list((tmp_path / "storage").rglob("plan.json"))
    assert MARK.encode() not in written(tmp_path / "storage")
    parts = cachelayer.sharded(functools.partial(modules[0]["part"], MARK), 2)
    storage.cache(parts, "parts", "v1")
    assert MARK.encode() not in written(tmp_path / "storage")


def test_urls_that_are_recorded_have_no_password(storage: Storage, tmp_path: Path) -> None:
    @storage.cacheable("d", "v1", record=("url",))
    def rows(url: str) -> list[int]:
        return [1]

    assert rows(f"s3://me:{MARK}@host/x?signature={MARK}").provenance["arguments"] == {"url": "s3://host/x"}
    assert MARK.encode() not in written(tmp_path / "storage")
