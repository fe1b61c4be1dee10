"""Views of some leaves: the same records, order, states and shards, and only the bytes of these leaves."""

import tracemalloc
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from document_views import plain
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples

import cachelayer
from cachelayer import ArraySpec, CorruptionError, InvalidArgumentError, InvalidTypeError, Storage


class Pair(NamedTuple):
    """Two leaves of one name each."""

    left: int
    right: str


SPEC = {
    "n": ArraySpec("int64"),
    "tokens": ArraySpec("int32", (None,)),
    "meta": {"url": ArraySpec(str), "at": {"row": ArraySpec("int16"), "none": ArraySpec(bytes, nullable=True)}},
    "pair": Pair(ArraySpec("int8"), ArraySpec(str)),  # type: ignore[arg-type]
    "fixed": ArraySpec("float32", (5,)),
}
PATHS = ("n", "tokens", "meta/url", "meta/at/row", "meta/at/none", "pair", "fixed")


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "n": number,
            "tokens": np.arange(number % 7, dtype=np.int32),
            "meta": {"url": "é" * (number % 3), "at": {"row": number % 100, "none": b"x" if number % 2 else None}},
            "pair": Pair(number % 5, str(number)),
            "fixed": np.full(5, number, np.float32),
        }
        for number in range(count)
    ]


ROWS = rows(300)


def only(element: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The element with these fields alone, in its own order."""
    found: dict[str, Any] = {}
    for key, value in element.items():
        below = [name.removeprefix(f"{key}/") for name in names if name.startswith(f"{key}/")]
        if key in names:
            found[key] = value
        elif below:
            found[key] = only(value, below)
    return found


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Storage(tmp_path_factory.mktemp("fields")).submit(ROWS, "d@v1", element_spec=SPEC, shard_bytes=20_000)


NAMES = st.lists(st.sampled_from([*PATHS, "meta", "meta/at"]), min_size=1, max_size=4)


@settings(max_examples=examples(50), deadline=None)
@given(names=NAMES, more=NAMES, seed=st.integers(0, 99))
def test_elements_are_those_of_the_whole_with_these_leaves_alone(
    ref: Any, names: list[str], more: list[str], seed: int
) -> None:
    view = ref.fields(*names)
    numbers = np.random.default_rng(seed).integers(0, 300, 9).tolist()
    expected = [plain(only(ROWS[number], names)) for number in numbers]
    assert [plain(view[number]) for number in numbers] == expected
    joined = cachelayer.concat([ref[:150], ref[150:]]).fields(*names)
    for each in (view, joined):
        assert plain(each.__getitems__(numbers)) == expected
    inner = ref.fields(*names, *more).fields(*names)
    assert (inner.digest, plain(inner[3])) == (view.digest, plain(view[3]))


def test_a_state_of_a_stream_of_fields_goes_on_with_them_and_with_others_of_the_same_rows(ref: Any) -> None:
    def stream(records: Any) -> Any:
        return records.stream(8, shuffle=True, seed=3, num_epochs=2)

    view = ref.fields("n", "meta/at")
    state, rest = stream(view).state(5), [batch["n"].tolist() for batch in stream(view)][5:]
    for records in (view, ref, ref.fields("n", "tokens")):
        iterator = iter(stream(records))
        iterator.set_state(state)
        assert [batch["n"].tolist() for batch in iterator] == rest
    with pytest.raises(cachelayer.StateError):
        iter(stream(view[1:])).set_state(state)


def test_the_digest_names_the_leaves_whatever_they_were_called(ref: Any) -> None:
    assert ref.fields(*PATHS).digest == ref.fields("meta", "n", "pair", "tokens", "fixed").digest == ref.digest
    assert ref.fields("n", "tokens").digest == ref.fields("tokens", "n", "n").digest
    assert ref.fields("meta").digest == ref.fields("meta/at", "meta/url").digest
    assert ref[::2].fields("n").digest == ref.fields("n")[::2].digest
    digests = {ref.fields(name).digest for name in PATHS} | {ref.digest, ref.fields("n")[1:].digest}
    assert len(digests) == len(PATHS) + 2
    assert ref.fields("n", "meta/url").digest == "952156005e29554acfec6e5bfbca2621059f1bed1305af4cade643bd622cda99"


def test_all_fields_are_the_whole_whatever_is_beside_the_records(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.submit([{"a": n, "meta": {"b": n}} for n in range(9)], "d@v1")
    added = storage.add_columns("d@v1", new="v2", columns={"c": np.arange(9), "a": np.arange(9) / 2}, replace=True)
    for view in (added, added[2:], added.where("c > 3"), storage.fetch("d@v1")):
        assert view.fields(*view.element_spec).digest == view.digest
        assert view.fields("a").digest != view.digest


def test_an_added_column_that_is_decoded_makes_elements_that_are(tmp_path: Path) -> None:
    made = pytest.importorskip("pictures_and_sounds", exc_type=ImportError)
    storage, file = Storage(tmp_path), made.png(np.full((2, 2, 3), 7, np.uint8))
    storage.submit([{"n": n} for n in range(3)], "d@v1")
    ref: Any = storage.add_columns(
        "d@v1", new="v2", columns=lambda _: {"image": file}, element_spec={"image": cachelayer.ImageSpec("RGB")}
    )
    costs = [view._records.info.reading_cost for view in (ref, ref.fields("n"), ref.fields("image"), ref.raw())]
    assert costs == ["decoded", "stored", "decoded", "stored"]


def test_what_is_no_field_is_refused(ref: Any) -> None:
    for names in (("nope",), ("n", "meta/nope"), ("meta/",), ("",), (), ("pair/left",)):
        with pytest.raises(InvalidArgumentError, match=names[-1].removesuffix("/left") if any(names) else "field"):
            ref.fields(*names)
    with pytest.raises(InvalidTypeError, match="field 3"):
        ref.fields(3)
    with pytest.raises(InvalidTypeError, match="field"):
        ref.fields(("n", "tokens"))


@pytest.mark.parametrize("size", [(1 << 20,), (None,)])
def test_only_the_bytes_of_these_fields_are_read(tmp_path: Path, size: tuple[int | None]) -> None:
    spec = {"blob": ArraySpec("uint8", size), "label": ArraySpec("int64"), "text": ArraySpec(str)}
    blob = np.zeros(1 << 20, np.uint8)
    rows = [{"blob": blob, "label": number, "text": str(number)} for number in range(24)]
    ref = Storage(tmp_path).submit(rows, "d@v1", element_spec=spec, shard_bytes=10 << 20)
    view = ref.fields("label", "text")
    assert view[23]["label"] == 23
    tracemalloc.start()
    try:
        assert view.read(range(24))["label"].tolist() == list(range(24))
        assert [each["text"] for each in view.__getitems__(range(24))] == [str(each) for each in range(24)]
        assert view[5]["label"] == 5
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


def test_blocks_of_fields_depend_on_what_is_stored_and_not_on_how_it_is_read(tmp_path: Path) -> None:
    rows = [{"blob": np.zeros(50_000, np.uint8), "label": number} for number in range(90)]
    Storage(tmp_path).submit(rows, "d@v1")
    Storage(tmp_path).copy("d@v1", to=(far := Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)))
    refs = [Storage(tmp_path).fetch("d@v1"), Storage(tmp_path, verify="always").fetch("d@v1"), far.fetch("d@v1")]
    for changed in (lambda ref: ref, lambda ref: cachelayer.concat([ref, ref[:9]])):
        streams = [changed(ref).fields("label").stream(8, shuffle="blocks", seed=1) for ref in refs]
        whole = iter(changed(refs[0]).stream(8, shuffle="blocks", seed=1)).get_state()
        for stream in streams:
            iterator = iter(stream)
            assert iterator.get_state()["order"] == whole["order"]
            iterator.set_state(iter(streams[0]).get_state())
            assert stream.record_numbers(3).tolist() == streams[0].record_numbers(3).tolist()


@pytest.mark.parametrize("verify", ["open", "never"])
def test_what_is_damaged_elsewhere_in_a_record_is_found_over_the_network(verify: Any) -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0, verify=verify)
    ref: Any = storage.submit([{"x": 1, "y": b"abcdefgh" * 9}] * 3, "d@v1")
    store, name = ref._base.version.folder, ref._base.version.manifest.shards[0].name
    raw = store.read(name)
    store.put(name, raw.replace(b"abcdefgh" * 9, b"abcdefgh" * 8 + b"abcdefgx", 1))
    with pytest.raises(CorruptionError, match="does not match its checksum"):
        storage.fetch("d@v1").fields("x")[0]


def test_images_are_decoded_only_if_they_are_chosen(tmp_path: Path) -> None:
    made = pytest.importorskip("pictures_and_sounds", exc_type=ImportError)
    file = made.png(np.full((2, 2, 3), 7, np.uint8))
    spec = {"image": cachelayer.ImageSpec("RGB"), "label": ArraySpec("int64")}
    rows = [{"image": file, "label": 0}, {"image": b"no image", "label": 1}]
    ref = Storage(tmp_path).submit(rows, "d@v1", element_spec=spec, validate=False)
    assert ref.fields("label").read([0, 1])["label"].tolist() == [0, 1]
    assert ref.fields("image")[0]["image"].tolist() == np.full((2, 2, 3), 7).tolist()
    assert ref.raw().fields("image")[1] == {"image": b"no image"}
    assert ref.raw().lengths("image").tolist() == [len(file), 8]


def test_a_field_is_read_by_its_name_and_padded_by_its_length(ref: Any) -> None:
    with pytest.raises(cachelayer.InvalidTypeError, match="fields"):
        ref["n"]
    assert ref.read([1], fields="n")["n"].tolist() == [ref[1]["n"]]
    for view in (ref.padded("tokens", 3, long="truncate"), ref.padded({"tokens": 3}, long="truncate")):
        assert view[1]["tokens"].shape == (3,)


def test_an_error_within_a_property_is_not_said_to_be_a_missing_attribute(ref: Any) -> None:
    class Broken(cachelayer.DataRef[Any]):
        @property
        def broken(self) -> Any:
            return None.nothing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match=r"'NoneType'.*'nothing'"):
        _ = Broken(ref._records).broken
    with pytest.raises(AttributeError, match=r"'DataRef'.*'absent'"):
        _ = ref.absent
