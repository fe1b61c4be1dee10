"""States that move between datasets whose rows have one digest, however these are stored, viewed and streamed."""

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from resuming import noted
from samples import examples

import cachelayer
from cachelayer import Blocks, SourceError
from cachelayer.arrayrecord.riegeli import plain_nbytes
from cachelayer.arrayrecord.writer import _OPTIONS
from cachelayer.builds.as_source import as_source

# So many bytes that default sizes of blocks differ if the bytes of a record do.
RECORDS, VALUES = 180, 3000


def row(number: int) -> dict[str, Any]:
    return {"n": number, "m": number / 2, "tokens": np.full(VALUES + number * 7 % 400, number, np.int32)}


def windows(ref: Any, **options: Any) -> Any:
    return ref.windows("tokens", 1024, **options)


VIEWS: dict[str, Callable[[Any], list[Any]]] = {
    "versions": lambda ref: [ref],
    "slices": lambda ref: [ref[5:]],
    "every other": lambda ref: [ref[::2]],
    "chosen": lambda ref: [ref.where("n % 3 != 1")],
    "part of a split": lambda ref: [ref.split({"a": 0.7, "b": 0.3}, seed=1, by="n")["a"]],
    "fields": lambda ref: [ref, ref.fields("n")],
    "padded": lambda ref: [ref.padded("tokens", VALUES + 400)],
    "windows": lambda ref: [windows(ref), windows(ref, beside=["n", "m"])],
    "windows with segments": lambda ref: [windows(ref, segments=True), windows(ref, segments=True, beside="n")],
    "part of windows": lambda ref: [windows(ref)[7:], windows(ref, beside=["n", "m"])[7:]],
    "packs": lambda ref: [
        ref.packed("tokens", 1024),
        ref.packed("tokens", 1024, segments=False),
        ref.packed("tokens", 1024, beside=["n", "m"]),
    ],
    "concat": lambda ref: [cachelayer.concat([ref, ref[:20]])],
    "concat of windows": lambda ref: [
        cachelayer.concat([windows(ref), windows(ref)]),
        cachelayer.concat([windows(ref, beside=["n", "m"])] * 2),
    ],
    "mixture": lambda ref: [cachelayer.mix([(ref, 2), (ref[::2], 1)])],
    "mixture of windows": lambda ref: [
        cachelayer.mix([(windows(ref), 2), (windows(ref)[::2], 1)]),
        cachelayer.mix([(windows(ref, beside=["n", "m"]), 2), (windows(ref, beside=["n", "m"])[::2], 1)]),
    ],
}
ORDERS: dict[str, list[Any]] = {
    "exact": [True],
    "in order": [False],
    "blocks": ["blocks"],
    "blocks of some size, then open": [
        Blocks(records=7),
        Blocks(lanes=4),
        Blocks(records=5, window=32, lanes=8),
        "blocks",
    ],
}


@pytest.fixture(scope="module")
def siblings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """For each view, datasets whose rows have one digest: of records that are stored plain and compressed."""
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    refs: list[Any] = [
        storage.submit(list(map(row, range(RECORDS))), "d@v1"),
        storage.rewrite("d@v1", "v2", compression="zstd"),
        storage.rewrite("d@v1", "v3", compression="zstd:9"),
    ]
    made = {view: [sibling for ref in refs for sibling in make(ref)] for view, make in VIEWS.items()}
    for several in made.values():
        assert len({iter(each.stream(1)).get_state()["digest"] for each in several}) == 1
    return made


def common(batches: Any, others: Any) -> list[tuple[Any, Any]]:
    """The values of the fields that both have."""
    pairs = [(one, other, key) for one, other in zip(batches, others, strict=True) for key in one.keys() & other.keys()]
    return [(listed(one[key]), listed(other[key])) for one, other, key in pairs]


def listed(values: Any) -> Any:
    # Of a Ragged, the values of all rows.
    return np.asarray(getattr(values, "values", values)).tolist()


def unnamed(state: Any) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != "dataset"}


@given(st.data())
@settings(deadline=None, max_examples=examples(150), phases=[Phase.generate])
def test_a_state_goes_on_over_any_dataset_with_its_digest(siblings: dict[str, list[Any]], data: st.DataObject) -> None:
    view = data.draw(st.sampled_from(sorted(VIEWS)))
    saving, restoring = (data.draw(st.sampled_from(siblings[view])) for _ in range(2))
    shuffles = ORDERS[data.draw(st.sampled_from(sorted(ORDERS)))]
    options: dict[str, Any] = {"seed": data.draw(st.integers(0, 2**64 - 1))} if shuffles[0] else {}
    if isinstance(saving, cachelayer.View):
        options["num_epochs"] = 3
        options["remainder"] = data.draw(st.sampled_from(["keep", "drop", "wrap"]))
    size = data.draw(st.sampled_from([None, 3, 8, 24]))
    if size is None:
        options.pop("remainder", None)
    saved = saving.stream(size, shuffle=data.draw(st.sampled_from(shuffles)), **options)
    if data.draw(st.booleans()):
        saved = saved.without(steps=data.draw(st.lists(st.integers(0, 9), max_size=3)))
    iterator = iter(saved)
    for _ in islice(iterator, data.draw(st.integers(0, 12))):
        pass
    state = iterator.get_state()
    other = iter(restoring.stream(size, shuffle=shuffles[-1], **options))
    for _ in islice(other, data.draw(st.integers(0, 2))):
        pass
    other.set_state(data.draw(st.sampled_from([state, json.dumps(state), json.dumps(state).encode()])))
    assert unnamed(other.get_state()) == unnamed(state)
    if data.draw(st.booleans()):
        other = data.draw(st.sampled_from([copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]))(other)
        assert unnamed(other.get_state()) == unnamed(state)
    for mine, theirs in common(islice(iterator, 3), islice(other, 3)):
        assert mine == theirs
    assert unnamed(other.get_state()) == unnamed(iterator.get_state())


@pytest.mark.filterwarnings("ignore:.*equal records")
def test_default_sizes_of_blocks_are_one_for_a_digest_however_it_came_about(tmp_path: Path) -> None:
    def facts(ref: Any) -> Any:
        return ref.digest, iter(ref.stream(8, shuffle="blocks", seed=1)).get_state()["order"]["blocks"]

    rows = [{"x": np.zeros(2000 + n % 9, np.int32), "text": f"{n}" * (n % 7)} for n in range(300)]
    options: dict[str, Any] = {"shard_bytes": 400_000, "progress": False}
    storage = cachelayer.Storage(tmp_path)
    for name, compression in (("plain", None), ("compressed", "zstd")):
        storage.submit(rows[:200], f"{name}@v1", compression=compression, **options)
        storage.append(f"{name}@v1", new="v2", source=rows[200:], progress=False)
        storage.derive(f"{name}@v2", new="kept", keep=range(0, 300, 3))
        storage.append(f"{name}@kept", new="more", source=rows[:50], progress=False)
        storage.add_columns(f"{name}@v2", new="scored", columns=lambda row: {"y": len(row["x"])}, progress=False)
        storage.submit(rows, f"{name}@parts", compression=compression, workers=2, **options)
        # Another build goes on after the notes of one that failed.
        for source in (noted(as_source(rows), (150,))[0], noted(as_source(rows))[0]):
            with suppress(SourceError):
                storage.cache(source, f"{name}@resumed", compression=compression, on_change="ignore", **options)
        storage.erase(f"{name}@v2", records=[3, 77], reason="asked to", progress=False)
        assert facts(storage.fetch(f"{name}@resumed"))[0] == facts(storage.fetch(f"{name}@parts"))[0]
    assert [*storage.versions("plain")] == [*storage.versions("compressed")]
    for version in storage.versions("plain"):
        plain, compressed = (storage.fetch(f"{name}@{version}") for name in ("plain", "compressed"))
        assert facts(plain) == facts(compressed)
        assert compressed[::2].nbytes < plain[::2].nbytes


@given(
    st.lists(st.one_of(st.integers(0, 300), st.integers(65_000, 66_000)), min_size=1, max_size=60), st.integers(1, 30)
)
@settings(deadline=None, max_examples=examples(100))
def test_the_bytes_of_a_file_without_compression_are_known(
    tmp_path_factory: Any, lengths: list[int], times: int
) -> None:
    path = tmp_path_factory.mktemp("file") / "file"
    writer = ArrayRecordWriter(str(path), f"{_OPTIONS},uncompressed")
    for length in lengths * times:
        writer.write(bytes(length))
    writer.close()
    assert path.stat().st_size == plain_nbytes(np.array(lengths * times, np.int64))
