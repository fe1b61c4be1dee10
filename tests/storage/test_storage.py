"""Building, fetching, tagging, deleting; and what is refused."""

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage


def numbered(count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {"n": number, "x": np.full(3, number, np.float32)}


ARRAYS = {"n": np.arange(50), "x": np.repeat(np.arange(50, dtype=np.float32), 3).reshape(50, 3)}


def test_the_digest_is_that_of_the_data(tmp_path: Path) -> None:
    refs = [
        Storage(tmp_path / "a").submit(numbered(500), "d@v1", shard_bytes=5000),
        Storage(tmp_path / "b").submit(numbered(500), "other@v9", shard_bytes=5000, compression="zstd"),
        Storage(tmp_path / "b").submit(list(numbered(500)), "d@v1", shard_bytes=5000, description="again"),
    ]
    assert len({ref.digest for ref in refs}) == 1
    assert Storage(tmp_path / "a").submit(numbered(499), "d@v2", shard_bytes=5000).digest != refs[0].digest
    for ref in refs:
        assert [int(row["n"]) for row in ref] == list(range(500))


def test_references_open_what_they_name(storage: Storage) -> None:
    first = storage.submit(numbered(10), "d@v1", metadata={"a": [1]}, description="ten")
    second = storage.submit(numbered(20), "d@v2")
    storage.tag("d@v1", "stable")
    for text in ("d@v1", "d@stable", f"d@sha256:{first.digest}", f"d@sha256:{first.digest[:9]}"):
        assert storage.fetch(text).digest == first.digest
    for text in ("d", "d@latest", "d@v2"):
        assert storage.fetch(text).digest == second.digest
    assert storage.fetch("d@stable").dataset_version == "v1"
    assert cachelayer.open(first.reference).digest == first.digest
    assert len(cachelayer.open(f"{storage.url}/d@v2[:15]")) == len(storage.fetch("d[5:]")) == 15
    for other in (storage.verify, storage.delete):
        with pytest.raises(cachelayer.InvalidArgumentError, match="d@v2"):
            other("d@v2[:15]")
    assert cachelayer.open(f"file://{storage.url}/d@v2")[19]["n"] == 19
    assert (first.metadata, first.provenance["description"]) == ({"a": [1]}, "ten")
    with pytest.raises(cachelayer.CorruptionError, match="pinned"):
        cachelayer.open(first.reference.replace("@v1", "@v2"))
    with pytest.raises(cachelayer.InvalidArgumentError, match="pass one"):
        storage.fetch("d@v1", "v2")


def test_names_outside_the_grammar_are_refused(storage: Storage) -> None:
    names: list[Any] = ["", "a/b", "..", "-x", "a\n", "ü", "x" * 129, "latest", "sha256abc", None, 3, b"a"]
    for name in names:
        calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
            *((make, ([1], name, "v1")) for make in (storage.submit, storage.cache)),
            *((make, ([1], "d", name)) for make in (storage.submit, storage.cache)),
            (storage.cacheable, ("d", name)),
            (storage.fetch, (name, "v1")),
            (storage.versions, (name,)),
        ]
        for call, arguments in calls:
            # A text with a slash may name another storage.
            error = cachelayer.InvalidArgumentError if call == storage.versions else cachelayer.InvalidNameError
            with pytest.raises(error) as caught:
                call(*arguments)
            assert isinstance(caught.value, ValueError)
    assert storage.datasets() == []


def test_options_are_checked(storage: Storage) -> None:
    for options in (
        {"compression": "gzip"},
        {"shard_bytes": 0},
        {"max_records": -1},
        {"metadata": {"a": object()}},
        {"element_spec": {"a": object}},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            storage.submit([1], "d@v1", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="shard_bytes"):
        storage.submit([1], "d@v1", shard_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="verify"):
        Storage(storage.url, verify="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="reference"):
        cachelayer.open("nothing")
    assert storage.datasets() == []


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(cachelayer.StorageError, match="file"):
        Storage(tmp_path / "file").submit([1], "d@v1")


def test_what_a_source_finds_there_already_is_its_own_error(storage: Storage) -> None:
    storage.submit([1, 2], "raw@v1")
    with pytest.raises(cachelayer.AlreadyExistsError, match="raw@v1"):
        storage.cache(lambda: storage.submit([1, 2], "raw@v1"), "made@v1")


def test_opening_reads_no_records(storage: Storage) -> None:
    storage.submit({"x": np.zeros((2_000, 2_000), np.uint8)}, "d@v1")
    tracemalloc.start()
    ref = storage.fetch("d@v1")
    assert not ref[1_999]["x"].any()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000
