"""Windows, packs and padded records: compared with naive models, on any view, elastic, resumable, for ever the same."""

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from document_views import ELEMENTS, KINDS, LEAVES, STORED, document_views, same, values_of
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerWarning,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    Storage,
)

Ref = Any


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ref, list[dict[str, Any]]]]:
    return document_views(tmp_path_factory.mktemp("storage"))


leaf_names = st.sampled_from(list(LEAVES))
kinds = st.sampled_from(KINDS)


@given(
    kinds,
    leaf_names,
    st.integers(1, 40) | st.integers(40, 400),
    st.none() | st.integers(1, 50),
    st.none() | st.integers(0, 200),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(100))
def test_windows_are_cut_from_the_concatenation(
    refs: Any, kind: str, leaf: str, length: int, stride: int | None, separator: int | None, pads: bool
) -> None:
    ref, elements = refs[kind]
    docs, key = values_of(elements, leaf), LEAVES[leaf][0]
    if separator is not None:
        docs = [np.append(each, each.dtype.type(separator)) for each in docs]
    flat, step = np.concatenate(docs), stride or length
    rows, sizes = [], []
    for at in range(0, len(flat), step):
        row = flat[at : at + length]
        if len(row) == length or pads:
            rows.append(np.append(row, np.zeros(length - len(row), row.dtype)))
            sizes.append(len(row))
        if at + length >= len(flat):
            break
    view = ref.windows(leaf, length, stride=stride, separator=separator, remainder="pad" if pads else "drop")
    assert len(view) == len(rows)
    expected = {key: np.stack(rows) if rows else np.empty((0, length), flat.dtype)}
    if pads:
        expected[f"{key}_length"] = np.array(sizes, np.int32)
        expected[f"{key}_mask"] = np.arange(length) < np.array(sizes, np.int32)[:, None]
    assert view.element_spec[key] == ArraySpec(flat.dtype, (length,))
    same(view.read(range(len(view))), expected)
    for number in range(0, len(view), 7):
        same(view[number], {key: values[number] for key, values in expected.items()})
        row = np.zeros(length, flat.dtype)
        row[: sizes[number]] = separator or 0
        for dataset, record, begin, end, offset in view.sources(number):
            row[offset : offset + end - begin] = values_of([STORED[dataset][record]], leaf)[0][begin:end]
        assert np.array_equal(row, rows[number])


@pytest.mark.parametrize("names", [("tokens",), ("tokens", "weights")])
def test_a_window_alone_is_that_of_a_batch(tmp_path: Path, names: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    lengths = [0, 0, *rng.integers(1, 30, 60), 0, 90_000, 5, *rng.integers(0, 3, 60), 0]
    rows = [{name: rng.integers(0, 99, size).astype(np.int32) for name in names} for size in lengths]
    storage = Storage(tmp_path)
    ref = storage.submit(rows, "d@v1", element_spec=dict.fromkeys(names, ArraySpec(np.int32, (None,))))
    erased = Storage(tmp_path / "erased")
    erased.submit(rows, "d@v1", element_spec=dict.fromkeys(names, ArraySpec(np.int32, (None,))))
    erased.erase("d@v1", records=[3, 60], reason="asked")
    compressed = storage.rewrite("d@v1", new="zstd", compression="zstd")
    for records in (ref, ref[::-1], ref.select([5, 5, 63, 2]), erased.fetch("d@v1"), compressed):
        for length, stride in ((1, None), (7, 3), (200, None), (50_000, 9_999)):
            view = records.windows(names, length, stride=stride)
            view = pickle.loads(pickle.dumps(view))
            for number in {0, len(view) - 1, *range(0, len(view), max(1, len(view) // 200))} if len(view) else ():
                alone = view[number]
                same(alone, {name: values[0] for name, values in view.read([number]).items()})
                alone[names[0]][:] = 0


@pytest.mark.parametrize("dtype", ["bool", "uint16", "float16", "complex64", "datetime64[us]", "timedelta64[s]"])
def test_documents_of_every_dtype_are_cut_packed_and_padded(tmp_path: Path, dtype: str) -> None:
    docs = [np.arange(size).astype(dtype) for size in (2, 0, 1, 2)]
    ref = Storage(tmp_path).submit([{"t": doc} for doc in docs], "d@v1", element_spec={"t": ArraySpec(dtype, (None,))})
    flat = np.concatenate(docs)
    window = ref.windows("t", 4)[0]["t"]
    assert window.dtype == dtype
    assert np.array_equal(window, flat[:4])
    padded = np.append(flat[4:], np.zeros(3, dtype))
    assert np.array_equal(ref.windows("t", 4, remainder="pad").read([1])["t"][0], padded)
    assert np.array_equal(np.sort(ref.packed("t", 5)[0]["t"]), np.sort(flat))
    assert np.array_equal(ref.padded("t", 3)[2]["t"], np.append(docs[2], np.zeros(2, dtype)))
    buckets = cachelayer.Buckets("t", (1, 2))
    assert sum(batch["t"].size for batch in ref.stream(2, buckets=buckets)) == sum(map(len, docs)) + 1


@given(
    kinds,
    leaf_names,
    st.integers(1, 60),
    st.integers(0, 40),
    st.sampled_from(["split", "truncate", "drop"]),
    st.none() | st.integers(0, 9),
)
@settings(deadline=None, max_examples=examples(50))
def test_packs_hold_each_document_once(
    refs: Any, kind: str, leaf: str, longest: int, room: int, long: Any, seed: int | None
) -> None:
    ref, elements = refs[kind]
    docs, key = values_of(elements, leaf), LEAVES[leaf][0]
    view = ref.packed(leaf, longest + room, max_length=longest if room else None, long=long, seed=seed)
    batch = view.read(range(len(view)))
    tokens, ids, positions = batch[key], batch[f"{key}_segment_ids"], batch[f"{key}_positions"]
    assert tokens.dtype == docs[0].dtype
    assert ids.dtype == positions.dtype == np.int32
    expected = {
        "split": [doc[at : at + longest] for doc in docs for at in range(0, len(doc), longest)],
        "truncate": [doc[:longest] for doc in docs if len(doc)],
        "drop": [doc for doc in docs if 0 < len(doc) <= longest],
    }[long]
    found = []
    for row in range(len(view)):
        sources, end = view.sources(row), 0
        for number, (dataset, record, begin, stop, offset) in enumerate(sources, 1):
            assert offset == end
            end += stop - begin
            piece = values_of([STORED[dataset][record]], leaf)[0][begin:stop]
            assert np.array_equal(tokens[row][offset:end], piece)
            assert ids[row][offset:end].tolist() == [number] * len(piece)
            assert positions[row][offset:end].tolist() == list(range(len(piece)))
            found.append(piece)
        for added in (tokens, ids, positions):
            assert not added[row][end:].any()
    assert sorted(piece.tobytes() for piece in found) == sorted(piece.tobytes() for piece in expected)
    cells = len(view) * (longest + room)
    assert view.fill == (sum(map(len, expected)) / cells if cells else 1)


def test_leaves_of_one_length_stand_side_by_side(refs: Any) -> None:
    ref, _ = refs["many"]
    leaves = ("tokens", "meta/weights")
    for view, alone in (
        (ref.packed(leaves, 25), ref.packed("tokens", 25)),
        (
            ref.windows(leaves, 25, separator={"tokens": 8, "meta/weights": 4.0}, segments=True),
            ref.windows("tokens", 25, separator=8, segments=True),
        ),
    ):
        batch, expected = view.read(slice(None)), alone.read(slice(None))
        assert list(batch) == list(view.element_spec) == ["tokens", "weights", "tokens_segment_ids", "tokens_positions"]
        same({key: batch[key] for key in expected}, expected)
        assert np.array_equal(batch["weights"], (batch["tokens"] / 2).astype(np.float32))


def test_every_view_tells_the_records_of_its_versions(refs: Any) -> None:
    ref, other = refs["many"][0], refs["one"][0]
    many, one = ref.reference, other.reference

    def records(view: Any, index: int) -> list[tuple[str, int]]:
        return [(span.dataset, span.record) for span in view.sources(index)]

    assert ref[5:].sources(-1) == [cachelayer.RecordSpan(many, 89, None, None, 0)]
    assert records(ref[10:20].fields("tokens").select([3, 1]), 1) == [(many, 11)]
    assert records(ref[::-1].padded({"tokens": 3}, long="truncate"), 0) == [(many, 89)]
    both = cachelayer.concat([ref[50:60], other[::2]])
    assert [records(both, index) for index in (9, 10, 12)] == [[(many, 59)], [(one, 0)], [(one, 4)]]
    windows = other.windows("tokens", 40, segments=True)
    rows = cachelayer.concat([ref[:6].packed("tokens", 40), windows])
    assert records(rows[1:], -1) == records(windows, -1)
    mixed = cachelayer.mix([(ref[20:].packed("tokens", 40), 1), (windows, 1)])
    found = mixed._records.sources(np.array([0, len(mixed._records) - 1])).by_dataset()
    assert set(found) == {many, one}
    assert found[one].tolist() == [record for _, record in records(rows, -1)]
    assert records(cachelayer.wrap([1, 2], identity="two")[1:], 0) == [("two", 1)]
    # A window of nothing but separators is of no record.
    empty = ref.select([number for number, element in enumerate(ELEMENTS) if not len(element["tokens"])])
    separators = cachelayer.concat([empty, empty]).windows("tokens", 40, separator=0, remainder="pad")
    found = cachelayer.concat([separators, separators]).stream(2).sources(0)
    assert found.datasets == ()
    assert found.dataset.dtype == np.int64


def test_a_version_of_some_records_numbers_those_that_it_has(tmp_path: Any) -> None:
    storage = Storage(tmp_path)
    documents = [{"tokens": np.full(3, number, np.int32)} for number in range(20)]
    storage.cache(documents, "d@v1", element_spec={"tokens": ArraySpec("int32", (None,))})
    for keep in ([5, 17, 7, 19, 8], range(3, 20), range(19, -1, -1)):
        ref = storage.derive("d@v1", f"kept{len(keep)}", keep=keep)
        spans = ref.windows("tokens", len(keep) * 3).sources(0)
        assert [(span.dataset, span.record) for span in spans] == [(ref.reference, n) for n in range(len(keep))]


def test_boxes_are_padded_like_tokens_if_the_user_says_what_becomes_of_more(tmp_path: Path) -> None:
    boxes = [np.arange(4 * number, dtype=np.float32).reshape(number, 4) for number in range(6)]
    ref = Storage(tmp_path).submit([{"boxes": each} for each in boxes], "boxes@v1")
    padded = ref.padded("boxes", 3, value=-1, long="truncate")
    assert padded.element_spec["boxes"] == ArraySpec("float32", (3, 4))
    batch = padded.read(range(6))
    assert batch["boxes_length"].tolist() == [0, 1, 2, 3, 3, 3]
    for number, each in enumerate(boxes):
        expected = np.full((3, 4), -1, np.float32)
        expected[: min(number, 3)] = each[:3]
        assert np.array_equal(batch["boxes"][number], expected)
        assert np.array_equal(padded[number]["boxes"], expected)
    with pytest.raises(ElementError, match="boxes"):
        ref.padded("boxes", 3, long="refuse").read([4])
    with pytest.raises(InvalidArgumentError, match="long="):
        ref.padded("boxes", 3)


def test_padding_that_truncates_warns_with_the_share_that_is_kept(refs: Any) -> None:
    ref, elements = refs["slice"]
    sizes = [len(each["tokens"]) for each in elements]
    share = sum(min(size, 9) for size in sizes) / sum(sizes)
    with pytest.warns(CacheLayerWarning, match=f"keeps {share:.2%} of the values of 'tokens'") as caught:
        view = ref.padded({"tokens": 9})
    list(pickle.loads(pickle.dumps(view)).stream(8))
    assert len(caught) == 1
    quiet = ref.padded({"tokens": 9}, long="truncate")
    assert quiet.read([0], ["tokens_mask"]).keys() == {"tokens_mask"}
    assert (quiet.kept, quiet.digest) == (view.kept, view.digest) == (pytest.approx(share), view.digest)
    assert ref.padded({"tokens": max(sizes)}).kept == ref[:0].padded({"tokens": 9}).kept == 1


def test_records_that_are_too_long_can_be_refused_by_number(refs: Any) -> None:
    ref, elements = refs["slice"]
    view = ref.padded({"tokens": 20}, long="refuse")
    long = next(number for number, each in enumerate(elements) if len(each["tokens"]) > 20)
    for read in (lambda: view[long], lambda: view.read(slice(None)), lambda: view.__getitems__(range(len(view)))):
        with pytest.raises(ElementError, match="'tokens'") as caught:
            read()
        assert caught.value.record == long
    assert view.read([long - 1])["tokens"].shape == (1, 20)


def test_versions_without_values_have_no_windows_and_no_packs(tmp_path: Any) -> None:
    storage = Storage(tmp_path)
    spec = {"tokens": ArraySpec("int32", (None,))}
    empty = storage.cache([], "d@empty", element_spec=spec, allow_empty=True)
    hollow = storage.cache([{"tokens": np.empty(0, np.int32)}] * 5, "d@hollow", element_spec=spec)
    for ref in (empty, hollow, hollow[:0]):
        for view in (ref.windows("tokens", 3), ref.windows("tokens", 3, remainder="pad"), ref.packed("tokens", 3)):
            assert len(view) == 0
            assert view.read([])["tokens"].shape == (0, 3)
            assert list(view) == []
        assert ref.packed("tokens", 3).fill == 1
        assert len(ref.padded({"tokens": 3}, long="truncate")) == len(ref)
    assert hollow.windows("tokens", 2, separator=9).read([0, 1])["tokens"].tolist() == [[9, 9], [9, 9]]
    assert hollow.padded({"tokens": 2}, value=4, long="truncate").read([0])["tokens"].tolist() == [[4, 4]]


def test_records_that_are_one_leaf_have_windows_too(tmp_path: Any) -> None:
    storage = Storage(tmp_path)
    arrays = storage.cache(
        [np.arange(n, dtype=np.int64) for n in (3, 4)], "d@a", element_spec=ArraySpec("int64", (None,))
    )
    assert arrays.windows("", 3).read([0, 1])["values"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert arrays.padded({"": 2}, long="truncate")[1]["values_length"] == 2
    blobs = storage.cache([b"abc", b"", b"defg"], "d@b")
    assert blobs.windows("", 3, separator=0).read([0, 1])["values"].tobytes() == b"abc\0\0d"[:6]
    assert blobs.packed("", 8).read([0])["values"].tobytes() == b"abcdefg\0"


def test_padding_has_the_value_that_was_asked_for_and_the_order_stays_the_same(tmp_path: Any) -> None:
    documents = [{"tokens": np.arange(1, n + 1, dtype=np.int32), "types": bytes(n), "id": n} for n in (3, 0, 4, 2, 5)]
    spec = {"tokens": ArraySpec("int32", (None,)), "types": ArraySpec(bytes), "id": ArraySpec("int64")}
    ref: Any = Storage(tmp_path).submit(documents, "d@v1", element_spec=spec)
    leaves = ["tokens", "types"]
    for make in (
        lambda **value: ref.packed(leaves, 6, beside="id", **value),
        lambda **value: ref.packed("tokens", 6, segments=False, **value),
        lambda **value: ref.windows(leaves, 6, remainder="pad", separator=9, **value),
    ):
        plain, filled = make(), make(value={"tokens": -100, "types": 7} if "types" in make()[0] else -100)
        assert plain.digest == make(value=0).digest != filled.digest
        zeros, batch = plain.read(slice(None)), filled.read(slice(None))
        mask = zeros["tokens_mask"] if "tokens_mask" in zeros else zeros["tokens_segment_ids"] > 0
        assert not mask.all()
        for name, fill in (("tokens", -100), ("types", 7)):
            if name in batch:
                assert batch[name].tolist() == np.where(mask, zeros[name], fill).tolist()
        assert all((batch[name] == zeros[name]).all() for name in batch.keys() - {*leaves})
        state = iter(plain.stream(2, shuffle=True, seed=1)).get_state()
        iter(filled.stream(2, shuffle=True, seed=1)).set_state(state)
        assert cachelayer.open(filled.reference).digest == filled.digest
    for wrong in (lambda: ref.windows("tokens", 6, value=1), lambda: ref.packed("tokens", 6, value={"id": 1})):
        with pytest.raises(InvalidArgumentError, match="value"):
            wrong()


def test_padding_is_zero_in_memory_that_an_earlier_batch_has_used(tmp_path: Any) -> None:
    """Of 2 MiB a batch: such memory is used again, as it is."""
    documents = [{"tokens": np.full(700 + number % 50, 1, np.int32)} for number in range(1200)]
    spec = {"tokens": ArraySpec("int32", (None,))}
    ref: Any = Storage(tmp_path).submit(documents, "d@v1", element_spec=spec)
    for view in (ref.packed("tokens", 1024), ref.windows("tokens", 1024, remainder="pad", separator=5)):
        for numbers in (np.arange(512), np.arange(512), np.arange(len(view) - 512, len(view))):
            values = view.read(numbers)["tokens"]
            pieces = view.sources(int(numbers[-1]))
            assert values[-1].sum() == sum(piece.end - piece.begin for piece in pieces) + 5 * (values[-1] == 5).sum()
            assert np.isin(values, (0, 1, 5)).all()
            values.fill(77)
            del values


def test_digests_are_as_specified(refs: Any) -> None:
    ref = refs["many"][0][5:]

    def digest(name: str, **parameters: Any) -> str:
        text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(name.encode() + bytes.fromhex(ref.digest) + text.encode()).hexdigest()

    windows = {"leaves": ["tokens"], "length": 8, "stride": 3, "remainder": "drop"}
    assert ref.windows("tokens", 8, stride=3).digest == digest("windows", separator=[], segments=False, **windows)
    assert ref.windows("tokens", 8, stride=3, separator=258, segments=True).digest == digest(
        "windows", separator=["02010000"], segments=True, **windows
    )
    leaves = ["tokens", "meta/weights"]
    packed = ref.packed(leaves, 40, long="drop", seed=7)
    assert packed.digest == digest("packed", leaves=leaves, length=40, max_length=40, long="drop", seed=7, plan=1)
    padded = ref.padded({"maybe": 3, "tokens": 9}, value=1, long="refuse")
    assert padded.digest == digest(
        "padded", leaves=[["tokens", 9, "01000000", "refuse"], ["maybe", 3, "0100", "refuse"]]
    )


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda r: r.windows("token", 8), InvalidArgumentError, "'tokens'"),
        (lambda r: r.windows("id", 8), InvalidArgumentError, "'id'"),
        (lambda r: r.windows(5, 8), InvalidTypeError, "field"),
        (lambda r: r.windows(("tokens", "meta/weights"), 8, separator={"tokens": 1}), InvalidArgumentError, "weights"),
        (lambda r: r.windows("tokens", 8, segments=1), InvalidTypeError, "segments"),
        (lambda r: r.windows(("tokens", "maybe"), 8).read([0]), InvalidArgumentError, "record 1 .*'tokens'"),
        (lambda r: r.packed("tokens", 8, max_length=9), InvalidArgumentError, "max_length 9"),
        (lambda r: r.windows("tokens", 0), InvalidArgumentError, "length 0"),
        (lambda r: r.windows("tokens", 8, stride=0), InvalidArgumentError, "stride 0"),
        (lambda r: r.windows("tokens", 8, separator=2**31), InvalidArgumentError, "int32"),
        (lambda r: r.windows("tokens", 8, separator=0.5), InvalidTypeError, "separator 0.5"),
        (lambda r: r.windows("maybe", 8, separator=-1), InvalidArgumentError, "separator -1"),
        (lambda r: r.windows("meta/text", 8, separator=256), InvalidArgumentError, "separator 256"),
        (lambda r: r.windows("meta/weights", 8, separator=1e300), InvalidArgumentError, "separator 1e"),
        (lambda r: r.windows("tokens", 8, remainder="keep"), InvalidArgumentError, "'keep'"),
        (lambda r: r.packed([], 8), InvalidArgumentError, "field"),
        (lambda r: r.packed("tokens", 8, long="keep"), InvalidArgumentError, "'keep'"),
        (lambda r: r.packed(("tokens", "tokens"), 8), InvalidArgumentError, "'tokens'.*each once"),
        (lambda r: r.packed(("tokens", "maybe"), 8), InvalidArgumentError, "record 1 .*'tokens'"),
        (lambda r: r.padded({}), InvalidArgumentError, "field"),
        (lambda r: r.padded({"meta/text": 8}), InvalidArgumentError, "'meta/text'"),
        (lambda r: r.padded({"tokens": 8}, value={"maybe": 1}), InvalidArgumentError, "'tokens'"),
        (lambda r: r.padded({"tokens": 8}, long="drop"), InvalidArgumentError, "'drop'"),
    ],
)
def test_what_cannot_be_made_is_refused_at_once(refs: Any, call: Any, error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        call(refs["many"][0])
