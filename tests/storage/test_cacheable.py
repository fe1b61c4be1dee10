"""Functions whose results are versions."""

import functools
import re
import time
import uuid
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from user_code import load_code

import cachelayer
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe


def test_the_function_runs_once_and_keeps_its_face(storage: cachelayer.Storage) -> None:
    calls = []

    @storage.cacheable("rows@v1", description="rows")
    def rows(count: int, *, step: int = 2) -> list[int]:
        """Some rows."""
        calls.append(count)
        return list(range(0, count, step))

    assert (rows.__name__, rows.__doc__) == ("rows", "Some rows.")
    for call in (lambda: rows(10), lambda: rows(count=10), lambda: rows(10, step=2)):
        assert list(call()) == [0, 2, 4, 6, 8]
    assert calls == [10]
    provenance = rows(10).provenance
    assert provenance["arguments"] == {"count": 10, "step": 2}
    assert provenance["function"].endswith("rows")
    assert provenance["code"]["functions"]


def test_other_arguments_are_refused_with_both(storage: cachelayer.Storage) -> None:
    def rows(count: int) -> list[int]:
        return list(range(count))

    make = storage.cacheable("rows@v1")(rows)
    make(3)
    with pytest.raises(cachelayer.ArgumentsMismatchError, match="count was 3 and is 4"):
        make(4)
    without_a_name = storage.cacheable("rows@v2")(functools.partial(rows, 3))
    assert list(without_a_name()) == [0, 1, 2]


def test_arguments_are_stored_in_clear_only_if_they_are_numbers(storage: cachelayer.Storage, tmp_path: Path) -> None:
    @storage.cacheable("rows@v1")
    def rows(url: str, split: str, size: int, headers: dict[str, str]) -> list[int]:
        return [1]

    secret = ("postgresql://me:hunter2@host/db", "train", 3, {"Authorization": "Bearer hunter3"})
    arguments = rows(*secret).provenance["arguments"]
    assert (arguments["split"].isalpha(), arguments["size"]) == (False, 3)
    assert not any(b"hunter" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert list(rows(*secret)) == [1]
    with pytest.raises(cachelayer.ArgumentsMismatchError, match="url changed") as caught:
        rows(secret[0].replace("2", "4"), *secret[1:])
    assert "hunter" not in str(caught.value)
    with pytest.raises(cachelayer.ArgumentsMismatchError, match="split changed"):
        rows(secret[0], "test", *secret[2:])


Load = Callable[..., dict[str, Any]]

SOURCE = """
SIZE = 32

def scaled(n):
    return n * SIZE

def rows(count, name="a"):
    return [scaled(n) for n in range(count)]
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return partial(load_code, tmp_path, SOURCE)


def warned(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return caught


def test_code_that_changed_is_one_warning_that_says_what(storage: cachelayer.Storage, load: Load) -> None:
    make = storage.cacheable("rows@v1")
    old = make(load()["rows"])
    assert warned(lambda: (old(3), old(3))) == []
    new = make(load(("SIZE = 32", "SIZE = 64"), ("return n *", "return -n *"))["rows"])
    (warning,) = warned(lambda: new(3))
    assert (warning.category, warning.filename) == (cachelayer.StaleVersionWarning, __file__)
    assert re.search(r"rows@v1 .*scaled changed; SIZE was 32 and is 64", str(warning.message))
    assert list(new(3)) == [0, 32, 64]
    assert warned(lambda: (new(3), old(3))) == []
    newer = make(load(("return [", "return [1] + ["))["rows"])
    (warning,) = warned(lambda: newer(3))
    assert "rows changed" in str(warning.message)


def test_a_format_string_names_versions_by_the_arguments(storage: cachelayer.Storage) -> None:
    @storage.cacheable("rows@size-{size}_{scale:.2f}_{where.name}_{others[0]}_{size:0{width}}")
    def rows(size: int, scale: float = 0.5, *others: int, where: Path = Path("a/b"), width: int = 3) -> list[int]:
        return [size]

    assert rows(7, 0.25, 9).dataset_version == "size-7_0.25_b_9_007"
    assert list(rows(8, 0.25, 9)) == [8]
    assert list(storage.versions("rows")) == ["size-7_0.25_b_9_007", "size-8_0.25_b_9_008"]

    @storage.cacheable("rows@{kind}-{size}")
    def others(kind: str, **sizes: int) -> list[int]:
        return [1]

    assert others("a", size=3).dataset_version == "a-3"
    with pytest.raises(cachelayer.InvalidArgumentError, match="'size'"):
        others("a")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, 3) for text in ("{sise}", "{}", "{size:{width}}", "size-{size", "{size.name}", "{size:q}")),
        *(("{size}", value) for value in ("a b", "latest", "auto")),
    ],
)
def test_a_format_string_that_gives_no_name_is_refused(storage: cachelayer.Storage, text: str, value: Any) -> None:
    def rows(size: Any, *, seed: int = 0) -> list[int]:
        return [1]

    with pytest.raises(cachelayer.InvalidArgumentError, match=re.escape(repr(text))):
        storage.cacheable(f"rows@{text}")(rows)(value)
    assert storage.datasets() == []


def test_a_function_names_no_version(storage: cachelayer.Storage) -> None:
    with pytest.raises(cachelayer.InvalidNameError, match="version"):
        storage.cacheable("rows", lambda size: f"size-{size}")  # type: ignore[arg-type]


def test_auto_names_a_version_by_code_and_arguments(storage: cachelayer.Storage, load: Load) -> None:
    auto = storage.cacheable("rows@auto")
    name = auto(load()["rows"])(3).dataset_version
    assert re.fullmatch("auto-[0-9a-f]{12}", name)
    same = load(("return [scaled", "# a comment\n    return [scaled"))["rows"]
    assert warned(lambda: auto(same)(count=3, name="a")) == []
    assert list(storage.versions("rows")) == [name]
    others = {
        auto(same)(4).dataset_version,
        auto(load(("SIZE = 32", "SIZE = 64"))["rows"])(3).dataset_version,
        auto(load(("n * SIZE", "n"))["rows"])(3).dataset_version,
        storage.cacheable("rows@auto", max_records=2)(same)(3).dataset_version,
        storage.cacheable("rows@auto", element_spec=float)(same)(3).dataset_version,
    }
    assert len({name, *others}) == 6
    assert storage.cacheable("rows@auto", compression="zstd", progress=False)(same)(3).dataset_version == name


def test_functions_are_not_compared_with_those_of_another_release_of_python(
    storage: cachelayer.Storage, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = storage.cacheable("rows@v1")(load()["rows"])(3).provenance

    def recipe_of(*changes: tuple[str, str]) -> Recipe:
        return Recipe.of(load(*changes)["rows"], BuildOptions.of({}))

    assert recipe_of(("n * SIZE", "n")).code_changes(built)
    before = {**built, "code": {**built["code"], "python": "3.10"}}
    assert not recipe_of(("return n *", "return n * 1 *")).code_changes(before)


def test_auto_with_what_cannot_be_told_apart_is_refused(storage: cachelayer.Storage) -> None:
    @storage.cacheable("rows@auto")
    def rows(thing: Any) -> list[int]:
        return [1]

    with pytest.raises(cachelayer.InvalidArgumentError, match="argument thing"):
        rows(number for number in [1])
    with pytest.raises(cachelayer.InvalidArgumentError, match="name the version"):
        storage.cacheable("rows@auto")(len)([1])
    names = {rows(thing).dataset_version for thing in (b"a", b"b", {"a", "b"}, {"a"}, [1], "a")}
    assert len(names) == 6


class Run:
    def __init__(self, size: int) -> None:
        self.size, self.name = size, uuid.uuid4()


class Nested:
    def __init__(self) -> None:
        self.run, self.begun = Run(3), time.time_ns()


@pytest.mark.parametrize(("made", "told"), [(lambda: Run(3), "run.name"), (Nested, r"run\.begun.*run\.run")])
def test_auto_warns_of_what_differs_in_each_run(
    storage: cachelayer.Storage, made: Callable[[], Any], told: str
) -> None:
    @storage.cacheable("rows@auto")
    def rows(run: Any) -> list[int]:
        return [1]

    rows(made())
    with pytest.warns(cachelayer.CacheLayerWarning, match=rf"rows@auto-.* is built although .*{told}"):
        rows(made())
    assert len(storage.versions("rows")) == 2


def test_auto_does_not_warn_of_other_arguments_options_and_code(storage: cachelayer.Storage, load: Load) -> None:
    auto, shorter = storage.cacheable("rows@auto"), storage.cacheable("rows@auto", max_records=1)
    for function, size in ((auto, 3), (auto, 4), (shorter, 4)):
        function(load()["rows"])(size)
    auto(load(("n * SIZE", "n"))["rows"])(4)
    same = Run(3)
    assert {auto(lambda run: [1])(same).dataset_version for _ in range(2)}


def test_auto_as_a_plain_name_is_refused_with_a_hint(storage: cachelayer.Storage) -> None:
    for call in (storage.submit, storage.cache):
        with pytest.raises(cachelayer.InvalidNameError, match="cacheable"):
            call([1], "rows", "auto")
    storage.submit([1], "rows@v1")
    with pytest.raises(cachelayer.InvalidNameError, match="cacheable"):
        storage.copy("rows@v1", storage, new="auto")
