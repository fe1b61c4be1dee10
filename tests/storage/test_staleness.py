"""What a version is compared with when it is asked for again: code, values, options, and elements in memory."""

import functools
import importlib
import os
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from user_code import load_code

import cachelayer
from cachelayer import CacheLayerWarning, StaleVersionError, StaleVersionWarning, Storage
from cachelayer.adapters.folders import from_files
from cachelayer.builds import source_identity


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "storage")


def rows(*args: Any, value: Any = None) -> list[int]:
    return [1]


def closed(value: Any) -> Callable[[], list[int]]:
    return lambda: [len(str(value))]


class Holder:
    """Holds a value, and is iterated, called or asked by a method."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __iter__(self) -> Iterator[int]:
        return iter([1])

    def rows(self) -> list[int]:
        return [1]


class Called(Holder):
    def __call__(self) -> list[int]:
        return self.rows()


class Slots:
    __slots__ = ("__value", "other")

    def __init__(self, value: Any) -> None:
        self.__value = value

    def __iter__(self) -> Iterator[int]:
        return iter([1])


WAYS: dict[str, Callable[[Any], Any]] = {
    "closure": closed,
    "partial": lambda value: functools.partial(rows, value=value),
    "place in a partial": lambda value: functools.partial(rows, 3, value),
    "attribute": Holder,
    "slot": Slots,
    "attribute of a nested object": lambda value: Holder([Holder(value)]),
    "method": lambda value: Holder(value).rows,
}
ITEMS, OTHERS = (cachelayer.wrap(range(10), identity=name) for name in ("items", "others"))


def mixed(weight: int) -> cachelayer.Stream[Any]:
    return cachelayer.mix([(ITEMS, 1), (OTHERS, weight)]).stream(seed=0, shuffle=True)


VALUES: dict[str, tuple[Any, Any]] = {
    "array": (np.arange(100), np.arange(100) * (np.arange(100) < 50)),
    "dtype": (np.zeros(2), np.zeros(2, np.float32)),
    "bytes": (b"a", b"b"),
    "set": ({"a", "b"}, {"a", "c"}),
    "range": (range(3), range(4)),
    "dict": ({"a": 1}, {"a": 2}),
    "keys": ({1: 2}, {2: 2}),
    "scalar": (np.int64(3), np.int64(4)),
    "path": (Path("a"), Path("b")),
    "function": (closed(1), closed(2)),
    "stream": (ITEMS.stream(seed=0, shuffle=True), ITEMS.stream(seed=1, shuffle=True)),
    "iterator": (iter(ITEMS.stream()), iter(ITEMS.stream(start=3))),
    "epochs": (ITEMS.stream(2).epochs(), ITEMS.stream(3).epochs()),
    "mixture": (cachelayer.mix([(ITEMS, 1), (OTHERS, 1)]), cachelayer.mix([(ITEMS, 1), (OTHERS, 2)])),
    "stream of a mixture": (mixed(1), mixed(2)),
    "sample": (ITEMS.sample([1] * 10, seed=0), ITEMS.sample([1] * 10, seed=1)),
    "large": (np.zeros((3000, 4000)), np.ones((3000, 4000))),
}


@pytest.mark.parametrize(
    ("way", "name"), [*((way, "array") for way in WAYS), *(("closure", name) for name in VALUES if name != "array")]
)
def test_values_that_json_cannot_hold_are_compared(storage: Storage, way: str, name: str) -> None:
    before, after = map(WAYS[way], VALUES[name])
    built = storage.cache(before, "d@v1")
    assert storage.cache(WAYS[way](VALUES[name][0]), "d@v1", on_change="error").digest == built.digest
    with pytest.raises(StaleVersionError, match=r"value|args"):
        storage.cache(after, "d@v1", on_change="error")


@pytest.mark.parametrize("way", ["closure", "place in a partial", "slot"])
def test_what_cannot_be_compared_is_named_once(storage: Storage, way: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        with pytest.warns(CacheLayerWarning, match="TextIOWrapper") as caught:
            assert len([storage.cache(WAYS[way](file), "d@v1") for _ in range(2)]) == 2
        assert len(caught) == 1
        storage.cache(WAYS[way](file), "e@v1", on_change="ignore")


N = 1000
CHANGES: dict[str, tuple[Any, Any, str]] = {
    "array": (np.arange(N), np.arange(N) + 1, "elements changed"),
    "the last row": (np.arange(N), np.where(np.arange(N) == N - 1, 0, np.arange(N)), "elements changed"),
    "dtype": (np.arange(N), np.arange(N, dtype=np.int32), "elements changed"),
    "length": (np.arange(N), np.arange(N + 1), f"length was {N} and is {N + 1}"),
    "list": (["a", "b"], ["a", "c"], "elements changed"),
    "argument": (functools.partial(rows, value=3), functools.partial(rows, value=4), "argument value was 3 and is 4"),
    "closure": (closed(2), closed(3), "value was 2 and is 3"),
    "another function": (closed(2), functools.partial(rows, 3), "rows is new"),
    "iterable": (Holder("a"), Holder("b"), "attribute value changed"),
    "class": (Holder("a").rows, Called("a"), "Called.__call__ is new"),
    "order of a stream": (ITEMS.stream(seed=0, shuffle=True), ITEMS.stream(seed=1, shuffle=True), "seed=1"),
    "records of a stream": (ITEMS.stream(), OTHERS.stream(), "records was"),
    "function of a stream": (ITEMS.stream().map(float), ITEMS.stream().map(str), "argument functions"),
    "function of batches": (ITEMS.stream(2).map_batches(np.sort), ITEMS.stream(2).map_batches(np.flip), "functions"),
    "failures of a function": (
        ITEMS.stream().map(float),
        ITEMS.stream().map(float, on_error="replace"),
        "maps was",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_version_that_was_built_from_something_else_is_used_with_one_warning(storage: Storage, name: str) -> None:
    before, after, expected = CHANGES[name]
    built = storage.cache(before, "d@v1")
    with pytest.warns(StaleVersionWarning, match=f"d@v1 was built .*{expected}.*on_change=") as caught:
        digests = {storage.cache(after, "d@v1").digest for _ in range(2)}
    assert digests == {built.digest}
    assert [warning.filename for warning in caught] == [__file__]
    assert storage.cache(after, "d@v1", on_change="ignore").digest == built.digest
    with pytest.raises(StaleVersionError, match=expected):
        storage.cache(after, "d@v1", on_change="error")
    assert storage.cache(before, "d@v1", on_change="error").digest == built.digest


FRAMES: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "pandas": lambda module: module.DataFrame,
    "polars": lambda module: module.DataFrame,
    "pyarrow": lambda module: module.table,
    "datasets": lambda module: module.Dataset.from_dict,
}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_with_other_values_or_columns_is_noticed(storage: Storage, library: str) -> None:
    make = FRAMES[library](pytest.importorskip(library))
    columns = {"x": np.arange(N), "y": np.arange(N) / 2}
    built = storage.cache(make(columns), "d@v1")
    assert storage.cache(make(columns), "d@v1", on_change="error").digest == built.digest
    others: list[tuple[dict[str, Any], str]] = [
        ({**columns, "x": np.where(columns["x"] == N - 7, 0, columns["x"])}, "column x changed"),
        ({**columns, "y": columns["y"] + 1}, "column y changed"),
        ({**columns, "y": columns["y"].astype("f4")}, "column y changed"),
        ({**columns, "z": columns["x"]}, r"columns was \['x', 'y'\] and is \['x', 'y', 'z'\]"),
        ({"x": columns["x"]}, r"columns was \['x', 'y'\] and is \['x'\]"),
        ({**columns, "x": [None] * N}, "column"),
    ]
    for other, expected in others:
        with pytest.raises(StaleVersionError, match=expected):
            storage.cache(make(other), "d@v1", on_change="error")


def test_a_function_over_a_stream_of_a_version_is_compared_without_a_look_at_what_was_read(storage: Storage) -> None:
    ref = storage.cache([{"n": number} for number in range(20)], "base@v1")

    def over(stream: Any) -> Callable[[], Iterator[Any]]:
        return lambda: iter(stream)

    for first, other in (
        (ref.stream(seed=0, shuffle=True), ref.stream(seed=1, shuffle=True)),
        (ref.stream().map(lambda element: element), ref.stream().map(lambda element: {**element, "one": 1})),
        (ref, ref.raw()[1:]),
    ):
        name = f"d{len(storage.datasets())}"
        storage.cache(over(first), f"{name}@v1")
        storage.cache(over(first), f"{name}@v1", on_change="error")
        with pytest.raises(StaleVersionError, match="stream"):
            storage.cache(over(other), f"{name}@v1", on_change="error")


def test_weights_of_a_mixture_are_noticed(storage: Storage) -> None:
    storage.cache(mixed(1), "d@v1", max_records=10)
    storage.cache(mixed(1), "d@v1", max_records=10, on_change="error")
    with pytest.raises(StaleVersionError, match="mixture"):
        storage.cache(mixed(2), "d@v1", max_records=10, on_change="error")


def test_the_same_table_in_other_memory_is_no_change(storage: Storage, tmp_path: Path) -> None:
    datasets, pa = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    columns = {"x": list(range(N)), "words": [["a"] * (row % 3) for row in range(N)]}
    table, dataset = pa.table(columns), datasets.Dataset.from_dict(columns)
    dataset.save_to_disk(tmp_path / "saved")
    storage.cache(table, "table@v1")
    storage.cache(dataset, "dataset@v1")
    for same in (pa.concat_tables([table[:3], table[3:]]), pa.concat_tables([table, table])[N:]):
        storage.cache(same, "table@v1", on_change="error")
    for same in (datasets.load_from_disk(tmp_path / "saved"), dataset.with_format("numpy"), dataset.select(range(N))):
        storage.cache(same, "dataset@v1", on_change="error")
    with pytest.raises(StaleVersionError, match="column x changed; column words changed"):
        storage.cache(dataset.select(range(N)[::-1]), "dataset@v1", on_change="error")


@pytest.mark.parametrize("library", FRAMES)
def test_every_value_of_a_frame_is_compared(storage: Storage, library: str) -> None:
    make, rows = FRAMES[library](pytest.importorskip(library)), 70_000
    columns: dict[str, list[Any]] = {
        "text": [f"row {row}" for row in range(rows)],
        "nullable": [None if row % 3 else row for row in range(rows)],
        "lists": [[row] * (row % 3) for row in range(rows)],
        "flags": [row % 2 == 0 for row in range(rows)],
    }
    storage.cache(make(columns), "d@v1")
    storage.cache(make(columns), "d@v1", on_change="error")
    values = {"text": "corrected", "nullable": None, "lists": [7], "flags": True}
    corrected = {name: [*column[:69_003], values[name], *column[69_004:]] for name, column in columns.items()}
    with pytest.raises(StaleVersionError, match="; ".join(f"column {name} changed" for name in columns)):
        storage.cache(make(corrected), "d@v1", on_change="error")


def test_of_a_table_that_is_too_large_rows_are_compared_and_it_is_said(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_identity, "MOST_NBYTES", 7_999)
    with pytest.warns(CacheLayerWarning, match="sample of its source, 256 of 1,000 rows") as caught:
        refs = [storage.cache({"x": np.arange(N)}, "d@v1", on_change="error") for _ in range(2)]
    assert len(caught) == 1
    assert refs[0].provenance["compared_in_part"] == ["256 of 1,000 rows"]
    made = storage.cache(lambda: {"x": np.arange(N)}, "made@v1")
    assert made.provenance["compared_in_part"] == ["256 of 1,000 rows"]


TENSORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "series of pandas": ("pandas", lambda pandas, values: pandas.Series(values)),
    "series of Polars": ("polars", lambda polars, values: polars.Series(values)),
    "texts": ("pandas", lambda pandas, values: pandas.Series(values.astype(str))),
    "tensor": ("torch", lambda torch, values: torch.asarray(values)),
    "dataset of tensors": ("torch", lambda torch, values: torch.utils.data.TensorDataset(torch.asarray(values))),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_every_value_of_a_series_or_tensor_is_compared(storage: Storage, kind: str) -> None:
    module, make = TENSORS[kind]
    library, values = pytest.importorskip(module), np.arange(5_000)
    storage.cache(make(library, values), "d@v1")
    storage.cache(make(library, values.copy()), "d@v1", on_change="error")
    with pytest.raises(StaleVersionError, match=r"elements changed|column 0 changed"):
        storage.cache(make(library, np.where(values == 4_321, 0, values)), "d@v1", on_change="error")


LONG = [{"x": number, "name": "a"} for number in range(300_000)]


def test_of_what_is_long_a_sample_is_compared_and_named(storage: Storage) -> None:
    def of(rows: list[Any], array: Any) -> Any:
        return lambda: [len(rows), len(array)]

    array = np.zeros(20_000_000)
    ref = storage.cache(of(LONG, array), "d@v1")
    elements, items = sorted(ref.provenance["compared_in_part"])
    assert re.search(r"array \(20,000 of 20,000,000 elements of an array\)$", elements)
    assert re.search(r"rows \([\d,]+ of 300,000 items\)$", items)
    storage.cache(of(LONG, array), "d@v1", on_change="error")
    for changed in ([{"x": 7, "name": "a"}, *LONG[1:]], [*LONG[:-1], {"x": 7, "name": "a"}], LONG[1:]):
        with pytest.raises(StaleVersionError, match="rows changed"):
            storage.cache(of(changed, array), "d@v1", on_change="error")


def test_what_is_held_is_looked_at_without_running_its_code(storage: Storage) -> None:
    class Item(list[int]):
        def __len__(self) -> int:
            raise AssertionError

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError

        def __getstate__(self) -> Any:
            raise AssertionError

    held = [Item([number]) for number in range(3)]
    storage.cache(closed(held), "d@v1")
    storage.cache(closed([Item([number]) for number in range(3)]), "d@v1", on_change="error")
    with pytest.raises(StaleVersionError, match="value changed"):
        storage.cache(closed([Item([number]) for number in range(4)]), "d@v1", on_change="error")


SOURCES: dict[str, Callable[[int], Any]] = {
    "generator": lambda scale: (number * scale for number in range(3)),
    "map": lambda scale: map(functools.partial(max, scale), [1, 2]),
    "range": lambda scale: range(scale),
    "tuple": lambda scale: (1, scale),
    "method of an object": lambda scale: Holder(scale).rows,
    "held frame": lambda scale: closed(pytest.importorskip("pandas").DataFrame({"x": np.arange(9) == scale})),
    "order of columns": lambda scale: closed(
        pytest.importorskip("pandas").DataFrame({"x": [1], "y": [1]})[["x", "y"][:: 5 - 2 * scale]]
    ),
    "held series": lambda scale: closed(pytest.importorskip("polars").Series([1, scale])),
    "held tensor": lambda scale: closed(pytest.importorskip("torch").arange(9) * scale),
    "held parameter": lambda scale: closed(pytest.importorskip("torch").full((3,), scale / 2, requires_grad=True)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_sources_of_every_kind_are_compared(storage: Storage, kind: str) -> None:
    make = SOURCES[kind]
    storage.cache(make(2), "d@v1", on_change="error")
    storage.cache(make(2), "d@v1", on_change="error")
    with pytest.raises(StaleVersionError):
        storage.cache(make(3), "d@v1", on_change="error")


def test_views_are_compared_by_their_records(storage: Storage) -> None:
    base = storage.submit(list(range(20)), "base@v1")
    storage.cache(base[:10], "d@v1")
    storage.cache(base[:10], "d@v1", on_change="error")
    with pytest.raises(StaleVersionError, match="records was"):
        storage.cache(base[10:], "d@v1", on_change="error")


def test_a_source_of_a_library_is_compared_by_what_pickle_would_keep_or_named(storage: Storage) -> None:
    torch = pytest.importorskip("torch")

    def source(count: int) -> Any:
        return torch.utils.data.ConcatDataset([torch.utils.data.TensorDataset(torch.arange(count))])

    storage.cache(source(3), "d@v1")
    storage.cache(source(3), "d@v1", on_change="error")
    with pytest.raises(StaleVersionError, match="source"):
        storage.cache(source(4), "d@v1", on_change="error")
    with Path(__file__).open() as file:
        ref = storage.cache(file, "e@v1", max_records=2)
    assert ref.provenance["not_compared"] == ["the source (TextIOWrapper)"]


class Numbers(Sequence[int]):
    """A sequence of a user's class."""

    def __init__(self, numbers: list[int], *, can_be_read: bool = True) -> None:
        self.numbers = numbers
        self.read = lambda number: numbers[number] if can_be_read else pytest.fail("it was read")

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: Any) -> int:
        return self.read(number)


def test_nothing_is_called_iterated_or_read_to_compare(storage: Storage) -> None:
    def never() -> Any:
        raise AssertionError

    def generated() -> Iterator[int]:
        raise AssertionError
        yield 1

    class Iterated:
        def __iter__(self) -> Iterator[int]:
            raise AssertionError

    storage.cache([1, 2, 3], "d@v1")
    for source in (never, generated, generated(), Iterated(), map(never, [1])):
        storage.cache(source, "d@v1", on_change="error")
    storage.cache(Numbers([1, 2, 3]), "e@v1")
    storage.cache(Numbers([1, 2, 3]), "e@v1", on_change="error")
    with pytest.raises(StaleVersionError, match="attribute numbers"):
        storage.cache(Numbers([1, 2, 4], can_be_read=False), "e@v1", on_change="error")


def test_what_is_the_same_is_no_change(storage: Storage) -> None:
    calls: list[int] = []

    def counted(size: int) -> list[int]:
        calls.append(1)
        return [size]

    for source in (functools.partial(counted, 3), functools.partial(counted, size=3)):
        storage.cache(source, "d@v1", on_change="error")
    assert calls == [1]
    for value in (threading.Lock(), threading.Event()):
        for _ in range(2):
            storage.cache(closed(value), f"d@{type(value).__name__}", on_change="error")


class Slotted:
    __slots__ = ("x",)


def test_what_python_notes_in_a_class_when_it_pickles_an_instance_is_no_change(storage: Storage) -> None:
    def rows() -> list[int]:
        return [len(Slotted.__slots__)]

    storage.cache(rows, "d@v1", on_change="error")
    pickle.dumps(Slotted())
    assert "__slotnames__" in vars(Slotted)
    storage.cache(rows, "d@v1", on_change="error")


def test_a_version_that_was_made_from_another_is_not_what_a_source_would_give(storage: Storage) -> None:
    storage.submit([{"x": number} for number in range(3)], "d@v1")
    storage.append("d@v1", "appended", [{"x": 7}])
    storage.derive("d@v1", "derived", keep=[0])
    storage.rewrite("d@v1", "rewritten")
    storage.add_columns("d@v1", "with-columns", {"y": np.arange(3)})
    storage.copy("d@derived", storage, new="copied")
    for version in ("appended", "derived", "rewritten", "with-columns", "copied"):
        for source in ([{"x": 9}], rows):
            with pytest.raises(StaleVersionError, match="built from the version v1, not from a source"):
                storage.cache(source, f"d@{version}", on_change="error")
            storage.cache(source, f"d@{version}", on_change="ignore")
        with pytest.warns(StaleVersionWarning, match="from the version v1"):
            storage.cache(rows, f"d@{version}")
        with pytest.raises(StaleVersionError, match="from the version v1"):
            storage.cacheable(f"d@{version}", on_change="error")(rows)()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_records": 3}, "max_records was None and is 3"),
        ({"unbatch": True}, "unbatch was False and is True"),
        ({"on_error": "skip"}, "on_error was 'raise' and is 'skip'"),
        ({"element_spec": np.int32}, "element_spec was None and is .*int32"),
    ],
)
def test_options_that_decide_the_records_are_compared(storage: Storage, options: Any, expected: str) -> None:
    storage.cache(rows, "d@v1")
    with pytest.raises(StaleVersionError, match=f"with other options: {expected}"):
        storage.cache(rows, "d@v1", on_change="error", **options)


def test_files_are_compared_unless_they_are_those_of_another_host(storage: Storage, tmp_path: Path) -> None:
    folder, copy = tmp_path / "files", tmp_path / "copy"
    for each in (folder, copy):
        each.mkdir()
        (each / "a.txt").write_text("a")
    storage.cache(from_files(folder), "d@v1")
    storage.cache(from_files(folder), "d@v1", on_change="error")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("socket.gethostname", lambda: "another")
        storage.cache(from_files(copy), "d@v1", on_change="error")
    (folder / "a.txt").write_text("ab")
    with pytest.raises(StaleVersionError, match="files_nbytes"):
        storage.cache(from_files(folder), "d@v1", on_change="error")
    (folder / "a.txt").unlink()
    with pytest.warns(CacheLayerWarning, match="without comparing all of its source"):
        storage.cache(from_files(folder), "d@v1")


def test_how_files_are_read_is_compared(storage: Storage, tmp_path: Path) -> None:
    pa, csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
    formats, npy = (importlib.import_module(f"cachelayer.adapters.{name}") for name in ("pyarrow", "npy"))
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.arange(3))
    int32, int64 = (pa.schema([("x", pa.type_for_alias(name))]) for name in ("int32", "int64"))
    ways: list[list[Callable[[], Any]]] = [
        [lambda: formats.from_csv(tmp_path / "a.csv"), lambda: formats.from_csv(tmp_path / "a.csv", int64)],
        [lambda: formats.from_csv(tmp_path / "a.csv", int32), lambda: formats.from_csv(tmp_path / "a.csv", int64)],
        [
            lambda: formats.from_csv(tmp_path / "a.csv", parse_options=csv.ParseOptions(quote_char="'")),
            lambda: formats.from_csv(tmp_path / "a.csv", parse_options=csv.ParseOptions(quote_char='"')),
        ],
        [lambda: npy.from_npz(tmp_path / "a.npz"), lambda: npy.from_npz(tmp_path / "a.npz", {"x": "y", "y": "x"})],
    ]
    for number, (one, other) in enumerate(ways):
        for _ in range(2):
            storage.cache(one(), f"d@v{number}", on_change="error")
        with pytest.raises(StaleVersionError, match=r"argument (schema|parse|arrays) changed"):
            storage.cache(other(), f"d@v{number}", on_change="error")


def test_files_that_were_touched_are_the_same_and_files_that_changed_are_not(storage: Storage, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(f"x\n{number}\n")
    storage.cache(str(tmp_path / "*.csv"), "d@v1")
    for number in range(3):
        os.utime(tmp_path / f"{number}.csv", (1e9 + number, 1e9 + number))
    storage.cache(str(tmp_path / "*.csv"), "d@v1", on_change="error")
    (tmp_path / "1.csv").write_text("x\n7\n")
    with pytest.raises(StaleVersionError, match="files_modified"):
        storage.cache(str(tmp_path / "*.csv"), "d@v1", on_change="error")


def test_an_argument_that_becomes_an_object_is_another(storage: Storage) -> None:
    storage.cache(functools.partial(rows, value=None), "d@v1")
    with pytest.raises(StaleVersionError, match="argument value changed"):
        storage.cache(functools.partial(rows, value=Holder(1)), "d@v1", on_change="error")


@pytest.mark.slow
def test_a_reload_is_noticed_and_what_ran_is_what_is_recorded(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / f"edited_{tmp_path.name}.py"

    def edit(number: int) -> None:
        path.write_text(f"def helper():\n    return {number}\n\n\ndef f():\n    return [helper()]\n")
        # Two edits within one tick of the file system's clock are told apart.
        os.utime(path, ns=(0, 10**9 * (10**9 + number)))
        importlib.invalidate_caches()

    edit(1)
    module = importlib.import_module(path.stem)
    edit(2)
    assert list(storage.cache(module.f, "e@v1")) == [1]
    module = importlib.reload(module)
    with pytest.raises(StaleVersionError, match="helper"):
        storage.cache(module.f, "e@v1", on_change="error")
    storage.cache(module.f, "e@v2")
    program = f"import cachelayer, {path.stem} as m\ns = cachelayer.Storage({storage.url!r})\n"
    call = f"{program}s.cache(m.f, 'e', 'v2', on_change='error')"
    subprocess.run([sys.executable, "-c", call], check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})


PROGRAM = """
import cachelayer, functools, numpy as np, sys
from pathlib import Path

NAMES = {"a", "b", "c"}

class Reader:
    __slots__ = ("names", "depth")
    def __init__(self, *names):
        self.names = frozenset(names)
        self.depth = {"x": [np.arange(3), b"y", Path("z")], NAMES.__len__(): None}
    def read(self):
        return sorted(self.names)

def rows(reader, table):
    return reader.read() + sorted(NAMES)

storage = cachelayer.Storage(sys.argv[1])
made = storage.cacheable("d@auto")(rows)(Reader("p", "q", "r"), {"k": {1, "2", 3.0}})
part = storage.cache(functools.partial(rows, Reader("p", "q"), np.eye(2)), "e@v1", on_change="error")
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process(storage: Storage) -> None:
    for seed in "123":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", PROGRAM, storage.url], check=True, env=environment)
    assert len(storage.versions("d")) == 1


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
    return load_code(folder, SECRETS.format(mark=mark), name="pipeline")


def assert_no_secret(storage: Storage) -> None:
    for path in Path(storage.url).rglob("*"):
        assert not path.is_file() or MARK.encode() not in path.read_bytes()


def test_no_secret_is_written_anywhere_and_one_that_changed_is_noticed(storage: Storage, tmp_path: Path) -> None:
    before, after = (module_of(tmp_path, mark)["SOURCES"] for mark in (MARK, "another"))
    for number, name in enumerate(before):
        storage.cache(before[name], f"d@v{number}")
        storage.cache(before[name], f"d@v{number}", on_change="error")
        assert_no_secret(storage)
        with pytest.raises(StaleVersionError) as caught:
            storage.cache(after[name], f"d@v{number}", on_change="error")
        assert MARK not in str(caught.value)


def test_no_record_is_written_outside_shards(storage: Storage) -> None:
    for version, source in (("v1", [271_828, 314_159]), ("v2", lambda: [271_828, 314_159])):
        assert "271828" not in str(storage.cache(source, f"d@{version}").provenance)


def test_no_secret_is_written_while_a_build_is_unfinished(storage: Storage, tmp_path: Path) -> None:
    def failing(function: Callable[..., Any], url: str, headers: dict[str, Any], index: int, count: int) -> Any:
        function(url, headers)
        if index == count - 1:
            raise OSError
        return range(100 * index, 100 * index + 100)

    module = module_of(tmp_path, MARK)
    source = functools.partial(failing, module["positional"], f"s3://x:{MARK}@host", {"Authorization": [MARK]})
    with pytest.raises(cachelayer.SourceError):
        storage.cache(cachelayer.sharded(source, 4), "d@v1")
    assert list(Path(storage.url).rglob("plan.json"))
    assert_no_secret(storage)
    storage.cache(cachelayer.sharded(functools.partial(module["part"], MARK), 2), "parts@v1")
    assert_no_secret(storage)
