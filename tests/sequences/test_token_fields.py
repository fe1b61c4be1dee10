"""Fields of documents beside their tokens, in windows and packs: against a loop over the documents."""

import pickle
import uuid
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from document_views import plain, same

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, InvalidTypeError, Storage
from cachelayer.datasets.version_records import VersionRecords

SPEC = {
    "tokens": ArraySpec("int32", (None,)),
    "labels": ArraySpec("int8", (None,)),
    "concepts": ArraySpec("uint16", (None,)),
    "meta": {"quality": ArraySpec("float32"), "source": ArraySpec(bytes, nullable=True)},
    "vector": ArraySpec(ml_dtypes.bfloat16, (2,)),
    "domain": ArraySpec(str),
    "kind": ArraySpec("<U4"),
    "rank": ArraySpec("int64", nullable=True),
    "origin": ArraySpec("int16"),
}
GROUP = 4
BESIDE = ("origin", "meta/quality", "vector")
ARGUMENTS: dict[str, Any] = {"beside": BESIDE, "every": {"concepts": GROUP}}


def document(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    length = int(rng.integers(0, 30)) if number % 4 else 0
    return {
        "tokens": rng.integers(1, 1000, length).astype(np.int32),
        "labels": rng.integers(1, 100, length).astype(np.int8),
        "concepts": rng.integers(1, 1000, -(-length // GROUP)).astype(np.uint16),
        "domain": ["web", "books", "", "é"][number % 4] if number != 7 else "rare",
        "meta": {"quality": np.float32(number + 1), "source": None if number % 3 else b"x" * (number % 2)},
        "kind": ["ab", "abcd"][number % 2],
        "vector": np.array([number, 1], ml_dtypes.bfloat16),
        "rank": number if number != 5 else None,
        "origin": np.int16(number % 3 - 1),
    }


DOCUMENTS = [document(number) for number in range(50)]
KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[list[Any]], list[Any]]]] = {
    "version": (lambda refs: refs["near"], lambda docs: docs),
    "zstd": (lambda refs: refs["zstd"], lambda docs: docs),
    "far": (lambda refs: refs["far"], lambda docs: docs),
    "slice": (lambda refs: refs["near"][40:3:-1], lambda docs: docs[40:3:-1]),
    "chosen": (lambda refs: refs["far"].select([7, 7, 0, 3, 49]), lambda docs: [docs[n] for n in (7, 7, 0, 3, 49)]),
    "columns": (lambda refs: refs["columns"], lambda docs: docs),
    "joined": (
        lambda refs: cachelayer.concat([refs["zstd"], refs["columns"][10:20]])[1:],
        lambda docs: (docs + docs[10:20])[1:],
    ),
    "joined fields": (
        lambda refs: cachelayer.concat([refs[name].fields(*SPEC) for name in ("far", "columns")]),
        lambda docs: docs * 2,
    ),
}


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    storage = Storage(tmp_path_factory.mktemp("near"))
    far = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    options: dict[str, Any] = {"element_spec": SPEC, "shard_bytes": 1500}
    added = ("domain", "kind", "rank", "origin")
    narrow = [{key: each[key] for key in SPEC if key not in added} for each in DOCUMENTS]
    spec = {key: SPEC[key] for key in SPEC if key not in added}
    storage.cache(narrow, "narrow@v1", element_spec=spec)

    def columns(each: Any) -> Any:
        return {key: DOCUMENTS[int(each["meta"]["quality"]) - 1][key] for key in added}

    return {
        "near": storage.cache(DOCUMENTS, "docs@v1", **options),
        "zstd": storage.cache(DOCUMENTS, "docs@zstd", compression="zstd", **options),
        "far": far.cache(DOCUMENTS, "docs@v1", **options),
        "columns": storage.add_columns("narrow@v1", "v2", columns, element_spec={key: SPEC[key] for key in added}),
    }


def cells_of(each: dict[str, Any], separator: bool) -> dict[str, Any]:
    """The cells of a document, for each key, with a separator behind them or not."""
    count = len(each["tokens"]) + separator
    group = np.minimum(np.arange(count) // GROUP, max(len(each["concepts"]) - 1, 0))
    concepts = each["concepts"][group] if len(each["concepts"]) else np.zeros(count, np.uint16)
    return {
        "tokens": np.append(each["tokens"], np.full(int(separator), 3, np.int32)),
        "origin": np.full(count, each["origin"]),
        "quality": np.full(count, each["meta"]["quality"]),
        "vector": np.repeat(each["vector"][None], count, axis=0),
        "concepts": concepts,
    }


def padded(values: Any, length: int) -> Any:
    return np.concatenate([values, np.zeros((length - len(values), *values.shape[1:]), values.dtype)])


@pytest.mark.parametrize("separator", [None, 3])
@pytest.mark.parametrize(("length", "stride"), [(7, 7), (16, 5), (3, 8), (100, 100)])
@pytest.mark.parametrize("kind", KINDS)
def test_windows_have_them_for_each_token(
    refs: Any, kind: str, length: int, stride: int, separator: int | None
) -> None:
    ref, documents = KINDS[kind][0](refs), KINDS[kind][1](DOCUMENTS)
    view = ref.windows("tokens", length, stride=stride, separator=separator, remainder="pad", **ARGUMENTS)
    plain_view = ref.windows("tokens", length, stride=stride, separator=separator, remainder="pad")
    cells = [cells_of(each, separator is not None) for each in documents]
    whole = {key: np.concatenate([each[key] for each in cells]) for key in cells[0]}
    expected = {
        key: np.stack([padded(values[at * stride :][:length], length) for at in range(len(view))])
        for key, values in whole.items()
    }
    expected |= {key: plain_view.read(slice(None))[key] for key in ("tokens_length", "tokens_mask")}
    same(view.read(slice(None)), expected)
    assert view.read([]).keys() == expected.keys()
    assert {key: (leaf.dtype, leaf.shape) for key, leaf in view.element_spec.items()} == {
        key: (values.dtype, values.shape[1:]) for key, values in expected.items()
    }
    same(view[len(view) - 1], {key: values[-1] for key, values in expected.items()})
    assert [view.sources(number) for number in range(len(view))] == [
        plain_view.sources(number) for number in range(len(view))
    ]


@pytest.mark.parametrize("long", ["split", "truncate"])
@pytest.mark.parametrize("kind", KINDS)
def test_packs_have_them_for_each_token(refs: Any, kind: str, long: Any) -> None:
    ref, documents = KINDS[kind][0](refs), KINDS[kind][1](DOCUMENTS)
    view = ref.packed("tokens", 24, max_length=10, long=long, segments=False, **ARGUMENTS)
    batch = view.read(slice(None))
    numbered = {each["meta"]["quality"]: each for each in documents}
    for row in range(len(view)):
        end = 0
        for span in ref.packed("tokens", 24, max_length=10, long=long).sources(row):
            place = slice(span.offset, span.offset + span.end - span.begin)
            each = numbered[batch["quality"][row, span.offset].item()]
            cells = cells_of(each, False)
            for key, values in cells.items():
                assert np.array_equal(batch[key][row, place], values[span.begin : span.end]), key
            end = place.stop
        for key, values in batch.items():
            assert not values[row, end:].any() if values.ndim > 1 else values[row] == end, key
    assert [*batch] == [
        "tokens",
        "origin",
        "quality",
        "vector",
        "concepts",
        "tokens_length",
        "tokens_mask",
    ]


def test_leaves_side_by_side_have_them_too_and_segments(refs: Any) -> None:
    leaves = ("tokens", "labels")
    for kind in ("windows", "packed"):
        view = getattr(refs["near"], kind)(leaves, 16, segments=True, beside="origin")
        without = getattr(refs["near"], kind)(leaves, 16, segments=True)
        batch = view.read(slice(None))
        assert [*batch] == ["tokens", "labels", "origin", "tokens_segment_ids", "tokens_positions"]
        same({key: batch[key] for key in without.element_spec}, without.read(slice(None)))
        # The rows are the same, so a state goes on.
        iterator = iter(without.stream(4, shuffle=True, seed=1))
        next(iterator)
        again = iter(view.stream(4, shuffle=True, seed=1))
        again.set_state(iterator.get_state())
        assert np.array_equal(next(again)["tokens"], next(iterator)["tokens"])


def test_references_pickles_and_plans_keep_them(refs: Any) -> None:
    near = refs["near"]
    views = [near.windows("tokens", 9, **ARGUMENTS), near[3:].packed("tokens", 30, **ARGUMENTS)[1:]]
    digests = {near.packed("tokens", 30, **options).digest for options in ({}, {"segments": False}, ARGUMENTS)}
    assert len(digests | {view.digest for view in views}) == 5
    for view in views:
        again: Any = cachelayer.open(view.reference)
        for other in (again, pickle.loads(pickle.dumps(view))):
            assert other.digest == view.digest
            same(other.read(slice(None)), view.read(slice(None)))


def test_mapped_streams_and_shards_have_them(refs: Any) -> None:
    view = refs["far"].packed("tokens", 24, **ARGUMENTS)
    options: Any = {"shuffle": cachelayer.Blocks(records=3, window=4, lanes=2), "seed": 1}
    stream = view.stream(4, **options)
    assert plain(list(stream)) == plain([view.read(stream.record_numbers(t)) for t in range(len(stream))])
    mapped = view.stream(4, **options).map(lambda row: {**row, "quality": row["quality"] * 2})
    assert np.array_equal(mapped[1]["quality"], stream[1]["quality"] * 2)
    assert np.array_equal(mapped[1]["origin"], stream[1]["origin"])


@pytest.mark.parametrize("name", ["windows", "packed"])
def test_records_are_read_once_for_all_fields(refs: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = getattr(refs["far"], name)("tokens", 40, **ARGUMENTS)
    calls: list[Any] = []
    read = VersionRecords.records

    def counted(records: VersionRecords, *given: Any, **options: Any) -> Any:
        calls.append(given)
        return read(records, *given, **options)

    monkeypatch.setattr(VersionRecords, "records", counted)
    view.read([0, 2])
    assert len(calls) == 1


def test_erased_documents_have_no_values(refs: Any, tmp_path: Any) -> None:
    storage = Storage(tmp_path)
    storage.cache(DOCUMENTS, "docs@v1", element_spec=SPEC)
    storage.erase("docs@v1", records=[1, 7], reason="asked for", grace=0)
    ref: Any = storage.fetch("docs@v1")
    view = ref.windows("tokens", 8, separator=3, beside=("origin", "meta/quality"))
    left = [each for number, each in enumerate(DOCUMENTS) if number not in (1, 7)]
    assert {*np.unique(view.read(slice(None))["quality"])} <= {0, *(each["meta"]["quality"] for each in left)}


def test_versions_without_documents_have_no_rows(tmp_path: Any) -> None:
    ref: Any = Storage(tmp_path).cache([], "docs@v1", element_spec=SPEC, allow_empty=True)
    for name in ("windows", "packed"):
        view = getattr(ref, name)("tokens", 8, **ARGUMENTS)
        assert (len(view), list(view)) == (0, [])
        assert view.read([])["vector"].shape == (0, 8, 2)


@pytest.mark.parametrize("name", ["windows", "packed"])
@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"beside": 3}, InvalidTypeError, "beside"),
        ({"beside": ("origin", 3)}, InvalidTypeError, "beside"),
        ({"beside": "nobody"}, InvalidArgumentError, "nobody"),
        ({"beside": "labels"}, InvalidArgumentError, "'labels'.*every"),
        ({"beside": ("origin", "origin")}, InvalidArgumentError, "'origin'.*each once"),
        ({"beside": "domain"}, InvalidArgumentError, "'domain'.*add_columns"),
        ({"beside": "kind"}, InvalidArgumentError, "'kind'.*add_columns"),
        ({"beside": ("origin", "meta/source")}, InvalidArgumentError, "'meta/source'.*add_columns"),
        ({"every": "concepts"}, InvalidTypeError, "every"),
        ({"every": {"concepts": 0}}, InvalidArgumentError, "'concepts'"),
        ({"every": {"concepts": "4"}}, InvalidTypeError, "'concepts'"),
        ({"every": {"meta/quality": 4}}, InvalidArgumentError, "'meta/quality'.*beside"),
        ({"segments": 1}, InvalidTypeError, "segments"),
    ],
)
def test_wrong_arguments_are_refused_at_once(refs: Any, name: str, options: Any, error: Any, named: str) -> None:
    with pytest.raises(error, match=named):
        getattr(refs["near"], name)("tokens", 8, **options)


def test_what_a_record_lacks_is_refused_with_its_number(refs: Any) -> None:
    near = refs["near"]
    with pytest.raises(InvalidArgumentError, match="record 5 has None in 'rank'"):
        near.packed("tokens", 900, beside="rank")[0]
    assert near.where("rank is not None").packed("tokens", 900, beside="rank")[0]["rank"].max() == 49
    for name in ("windows", "packed"):
        view = getattr(near, name)("tokens", 8, every={"concepts": 5})
        with pytest.raises(InvalidArgumentError, match=r"record \d+ has \d+ values in 'concepts' for \d+ tokens"):
            view.read(slice(None))
    with pytest.raises(InvalidArgumentError, match="beside='meta/quality'"):
        near.windows(("tokens", "meta/quality"), 8)
    with pytest.raises(InvalidArgumentError, match="every="):
        near.windows(("tokens", "concepts"), 8)[0]


def test_a_plan_of_packs_is_the_same_whatever_stands_beside(tmp_path: Any) -> None:
    ref: Any = Storage(tmp_path).cache(DOCUMENTS, "docs@v1", element_spec=SPEC)
    for options in ({}, {"segments": False}, ARGUMENTS):
        assert len(ref.packed("tokens", 24, **options)) > 0
    assert len(list(tmp_path.rglob("*.plan"))) == 1
    pack: Any = {"leaves": "tokens", "length": 24, **ARGUMENTS}
    Storage(tmp_path).cache(DOCUMENTS, "docs@v1", element_spec=SPEC, pack=pack)
