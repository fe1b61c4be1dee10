"""What every kind of view is known by: digests, references, origins, lengths and values, as a table that is kept.

``python tests/views/test_view_table.py`` writes the table anew. A line of it that changes breaks references, states
and stored plans of users: change one only if a new format is meant.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, CacheLayerError, ImageSpec, Storage, VideoSpec
from cachelayer.protocols import records_of, takes_requests

DATA = Path(__file__).parents[1] / "data"
TABLE = DATA / "views.json"
SPEC: dict[str, Any] = {
    "tokens": ArraySpec("int32", (None,)),
    "concept": ArraySpec("int16", (None,)),
    "text": ArraySpec(str),
    "label": ArraySpec("int64"),
    "score": ArraySpec("float32", nullable=True),
    "meta": {"url": ArraySpec(bytes), "point": ArraySpec("float32", (2,))},
}
OTHER_SPEC: dict[str, Any] = {
    **SPEC,
    "score": ArraySpec("float32", nullable=True),
    "label": ArraySpec("int64", nullable=True),
}
MEDIA_SPEC = {"image": ImageSpec(), "video": VideoSpec(), "label": ArraySpec("int64")}
DECODED = {"element", "elements of some", "batch", "some keys", "step"}
SPLIT = {"train": 0.75, "test": 0.25}


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "tokens": np.arange(number * 7 % 5 + number % 3, dtype=np.int32) + number,
            "concept": np.arange(-(-(number * 7 % 5 + number % 3) // 2), dtype=np.int16),
            "text": "ä" * (number % 4),
            "label": number % 3,
            "score": None if number % 4 == 1 else number / 4,
            "meta": {"url": b"u" * (number % 3), "point": np.array([number, -number], np.float32)},
        }
        for number in range(first, first + count)
    ]


def media_rows() -> list[dict[str, Any]]:
    video = (DATA / "video.mp4").read_bytes()
    picture = bytes(number % 256 for number in range(72))
    return [{"image": b"P6 4 6 255 " + picture, "video": video, "label": number} for number in range(3)]


class Versions:
    """The versions that the views are of, each built when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(folder)
        self.far = Storage(f"memory:/{folder}", local_cache_bytes=0)
        self.folder = folder
        self._made: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = MADE[name](self)
        return self._made[name]


def submit(storage: Storage, name: str, first: int = 0, count: int = 40) -> Any:
    return storage.submit(rows(first, count), name, element_spec=SPEC, shard_bytes=1500, compression="none")


def added(made: Versions) -> Any:
    made.storage.add_columns(f"d@{made.plain.dataset_version}", "v3", {"vector": np.ones((40, 3), np.float32)})
    columns = {"rank": np.arange(40), "label": np.arange(40) % 5}
    return made.storage.add_columns("d@v3", "v4", columns, replace=True)


def erased(made: Versions) -> Any:
    submit(made.storage, "erased@v1")
    made.storage.erase("erased@v1", records=[3, 17], reason="asked to", progress=False)
    return made.storage.fetch("erased@v1")


MADE: dict[str, Callable[[Versions], Any]] = {
    "plain": lambda made: submit(made.storage, "d@v1"),
    "more": lambda made: submit(made.storage, "more@v1", 40, 20),
    "other": lambda made: made.storage.submit(rows(5, 9), "other@v1", element_spec=OTHER_SPEC, compression="none"),
    "appended": lambda made: made.storage.append(
        f"d@{made.plain.dataset_version}", "v2", rows(40, 11), compression="none"
    ),
    "added": added,
    "erased": erased,
    "derived": lambda made: made.storage.derive(f"d@{made.appended.dataset_version}", "v5", exclude=[0, 1, 44]),
    "derived_erased": lambda made: made.storage.derive(f"erased@{made.erased.dataset_version}", "v2", exclude=[0]),
    "bucket": lambda made: submit(made.far, "d@v1"),
    "media": lambda made: made.storage.submit(media_rows(), "media@v1", element_spec=MEDIA_SPEC, compression="none"),
    "bytes": lambda made: made.storage.submit([b"one", b"", b"three"], "bytes@v1", compression="none"),
    "empty": lambda made: made.storage.submit([], "empty@v1", allow_empty=True),
    "wrapped": lambda _: cachelayer.wrap([{"n": number, "t": "x" * number} for number in range(9)], identity="items"),
    "growing": lambda made: made.storage.cache(
        rows(0, 40), "growing@v1", element_spec=SPEC, compression="none", wait=False
    ),
}
VIEWS: dict[str, Callable[[Versions], Any]] = {
    "version": lambda made: made.plain,
    "of a bucket": lambda made: made.bucket,
    "of a bucket, windows": lambda made: made.bucket.windows("tokens", 8),
    "of bytes": lambda made: made.bytes,
    "empty": lambda made: made.empty,
    "appended": lambda made: made.appended,
    "with added columns": lambda made: made.added,
    "erased": lambda made: made.erased,
    "derived": lambda made: made.derived,
    "derived of erased": lambda made: made.derived_erased,
    "derived, sliced": lambda made: made.derived[5:48],
    "raw": lambda made: made.plain.raw(),
    "media": lambda made: made.media,
    "media, raw": lambda made: made.media.raw(),
    "media, decoded": lambda made: made.media.decoded(size=(2, 3)),
    "media, decoded video": lambda made: made.media.decoded("video", size=(2, 4), crop=True).fields("video"),
    "media, decoded, raw": lambda made: made.media.decoded(size=(2, 3)).raw(),
    "media, clips": lambda made: made.media.clips("video", 3, stride=2, beside="label"),
    "media, clips, slice": lambda made: made.media[1:].clips("video", 4)[2:],
    "fields": lambda made: made.plain.fields("label", "meta/url"),
    "fields of fields": lambda made: made.plain.fields("label", "meta").fields("meta/point"),
    "all fields": lambda made: made.plain.fields("tokens", "concept", "text", "label", "score", "meta"),
    "fields, stored and added": lambda made: made.added.fields("text", "vector", "label"),
    "fields, added": lambda made: made.added.fields("vector"),
    "fields, stored": lambda made: made.added.fields("text", "meta"),
    "slice": lambda made: made.plain[4:31],
    "slice, backwards": lambda made: made.plain[30:4:-3],
    "slice of a slice": lambda made: made.plain[4:31][2:20:2],
    "select": lambda made: made.plain.select([5, 3, 3, 39]),
    "where": lambda made: made.plain.where("label == 2 and score is not None"),
    "where, function": lambda made: made.plain.where(lambda columns: columns["label"] > 0),
    "where, added column": lambda made: made.added.where("rank > 30"),
    "exclude": lambda made: made.plain.exclude([0, 7, 8]),
    "exclude erased": lambda made: made.erased.exclude(made.erased.erased),
    "split": lambda made: made.plain.split(SPLIT, seed=3)["test"],
    "split by": lambda made: made.plain.split(SPLIT, seed=3, by="meta/url")["train"],
    "split, stratified": lambda made: made.appended.split(SPLIT, seed=3, stratify="label")["train"],
    "folds": lambda made: made.appended.folds(4, seed=1)[2][0],
    "appended, slice": lambda made: made.appended[10:45],
    "appended, backwards": lambda made: made.appended[::-1],
    "appended, fields": lambda made: made.appended.fields("tokens"),
    "sample": lambda made: made.plain.sample("label", seed=3),
    "concat": lambda made: cachelayer.concat([made.plain, made.more]),
    "concat of one": lambda made: cachelayer.concat([made.plain[3:9]]),
    "concat of slices": lambda made: cachelayer.concat([made.plain[30:], made.more[::2], made.plain[:3]]),
    "concat of concat": lambda made: cachelayer.concat([cachelayer.concat([made.plain, made.more]), made.plain[:4]]),
    "concat of a slice of a concat": lambda made: cachelayer.concat(
        [cachelayer.concat([made.plain, made.more])[10:50], made.plain[:4]]
    ),
    "concat of other nulls": lambda made: cachelayer.concat([made.plain, made.other]),
    "concat of appended": lambda made: cachelayer.concat([made.appended, made.more]),
    "concat of erased": lambda made: cachelayer.concat([made.more, made.erased, made.derived]),
    "concat of fields": lambda made: cachelayer.concat(
        [made.plain.fields("tokens", "label"), made.more[2:].fields("tokens", "label")]
    ),
    "concat of added": lambda made: cachelayer.concat([made.added, made.added[3:8]]),
    "concat with a bucket": lambda made: cachelayer.concat([made.plain, made.bucket[:5]]),
    "concat of media": lambda made: cachelayer.concat([made.media.raw(), made.media[1:].raw()]),
    "concat of decoded": lambda made: cachelayer.concat([made.media.decoded(size=(2, 3))] * 2),
    "concat of windows": lambda made: cachelayer.concat(
        [made.plain.windows("tokens", 4), made.more.windows("tokens", 4)]
    ),
    "concat, fields": lambda made: cachelayer.concat([made.plain, made.more]).fields("tokens", "meta/url"),
    "concat, slice": lambda made: cachelayer.concat([made.plain, made.more])[5:].exclude([1]),
    "concat, windows": lambda made: cachelayer.concat([made.plain, made.more[4:]]).windows("tokens", 6),
    "concat of fields, windows": lambda made: cachelayer.concat(
        [made.plain.fields("tokens", "label"), made.more.fields("tokens", "label")]
    ).windows("tokens", 6, beside="label"),
    "concat of added, packed": lambda made: cachelayer.concat([made.added, made.added]).packed("tokens", 16),
    "concat, split": lambda made: cachelayer.concat([made.plain, made.more[::-1]]).split(SPLIT, seed=0)["test"],
    "mix": lambda made: cachelayer.mix([(made.plain, 2), (made.more, 1)]),
    "mix of windows": lambda made: cachelayer.mix(
        [(made.plain.windows("tokens", 4), 2), (made.more.windows("tokens", 4), 1)], stop="first", by="tokens"
    ),
    "mix of padded windows": lambda made: cachelayer.mix(
        [
            (made.plain.windows("tokens", 100, remainder="pad"), 2),
            (made.more.windows("tokens", 100, remainder="pad"), 1),
        ],
        by="tokens",
    ),
    "mix of wrapped": lambda made: cachelayer.mix([(made.wrapped, 1), (made.wrapped[:5], 3)], stop="all"),
    "windows": lambda made: made.plain.windows("tokens", 8, stride=4),
    "windows, all options": lambda made: made.plain.windows(
        "tokens", 8, separator=7, remainder="pad", segments=True, beside=("label", "meta/point"), every={"concept": 2}
    ),
    "windows of erased": lambda made: made.erased.windows("tokens", 8, beside="label"),
    "windows of text": lambda made: made.plain.windows("text", 8),
    "windows of appended": lambda made: made.appended.windows("tokens", 8, separator=0),
    "windows of appended, slice": lambda made: made.appended.windows("tokens", 8)[1:9],
    "windows beside an added column": lambda made: made.added.windows("tokens", 8, beside="rank"),
    "packed": lambda made: made.plain.packed("tokens", 16),
    "packed, all options": lambda made: made.plain.packed(
        "tokens", 16, long="drop", max_length=5, seed=3, segments=False, beside="label"
    ),
    "packed of appended": lambda made: made.appended.packed("tokens", 16),
    "padded": lambda made: made.plain.padded("tokens", 4, long="truncate"),
    "padded of appended": lambda made: made.appended.padded({"tokens": 4, "concept": 3}, value=9, long="truncate"),
    "padded, slice": lambda made: made.plain[::2].padded("tokens", 4, long="truncate")[3:],
    "rolling": lambda made: made.plain.fields("label", "meta/point").rolling(3, by="label", stride=2),
    "rolling of erased": lambda made: made.erased.fields("label", "meta/point").rolling(3, order="label"),
    "rolling by an added column": lambda made: made.added.fields("rank", "label").rolling(4, by="label"),
    "wrapped": lambda made: made.wrapped,
    "wrapped, with a spec": lambda _: cachelayer.wrap(
        [np.arange(number) for number in range(7)], identity="arrays", element_spec=ArraySpec("int64", (None,))
    ),
    "wrapped, slice": lambda made: made.wrapped[2:7],
    "wrapped, split": lambda made: made.wrapped.split(SPLIT, seed=3)["train"],
    "growing": lambda made: made.growing,
    "growing, slice": lambda made: made.growing[5:30],
    "growing, fields": lambda made: made.growing.fields("text", "label"),
    "growing, split": lambda made: made.growing.split(SPLIT, seed=3)["test"],
    "growing, concat": lambda made: cachelayer.concat([made.growing[3:], made.plain]),
    "growing, windows": lambda made: made.growing.windows("tokens", 8),
    "buckets": lambda made: made.plain.stream(4, buckets=("tokens", [2, 4, 8])),
    "buckets of an added column": lambda made: made.added.stream(4, buckets=("tokens", [2, 4, 8])),
}
BEGINNINGS: dict[str, Callable[[Versions], Any]] = {
    "appended": lambda made: made.plain,
    "appended, fields": lambda made: made.plain.fields("tokens"),
    "windows of appended": lambda made: made.plain.windows("tokens", 8, separator=0),
    "windows of appended, slice": lambda made: made.plain.windows("tokens", 8)[1:9],
    "packed of appended": lambda made: made.plain.packed("tokens", 16),
    "padded of appended": lambda made: made.plain.padded({"tokens": 4, "concept": 3}, value=9, long="truncate"),
    "appended, slice": lambda made: made.plain[10:45],
    "appended, backwards": lambda made: made.plain[::-1],
    "concat of appended": lambda made: made.plain,
    "derived": lambda made: made.plain,
}
"""Views of an appended version, with the same views of what it was appended to."""


def plain(value: Any) -> Any:
    """Return an element, or a batch, as JSON and numbers without memory addresses."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, cachelayer.Nullable):
        return {
            "values": [plain(each) if valid else None for each, valid in zip(value.values, value.valid, strict=True)]
        }
    if isinstance(value, cachelayer.Ragged):
        return {"rows": [plain(row) for row in value]}
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "values": plain(value.tolist())}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return value if isinstance(value, (int, float, str)) or value is None else repr(value)


def hashed(make: Callable[[], Any]) -> str:
    """Return a short hash of values; the name of an error in their place."""
    try:
        return hashlib.sha256(json.dumps(plain(make())).encode()).hexdigest()[:16]
    except CacheLayerError as error:
        return type(error).__name__


def attempted(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except CacheLayerError as error:
        return type(error).__name__


def facts_of(kind: str, made: Versions) -> dict[str, Any]:
    """Return what a view of a kind is known by, as JSON."""
    view = VIEWS[kind](made)
    if isinstance(view, cachelayer.View):
        facts = facts_of_view(view)
    elif isinstance(view, cachelayer.Stream):
        facts = {**facts_of_records(view._reader.records), **facts_of_stream(view)}
    else:
        facts = {**facts_of_records(view._records), **facts_of_stream(view.stream(4))}
        facts["reference"] = attempted(lambda: view.reference) if hasattr(type(view), "reference") else None
    if kind.startswith("media"):
        # Pictures and frames are decoded by other libraries.
        facts = {name: fact for name, fact in facts.items() if name not in DECODED}
    text = json.dumps(facts).replace(f"memory:/{made.folder}", "FAR").replace(str(made.folder), "FOLDER")
    return dict(json.loads(text))


def facts_of_view(view: Any) -> dict[str, Any]:
    erased = view.erased.tolist()
    there = view.exclude(erased)
    names = list(view.element_spec) if isinstance(view.element_spec, dict) else [""]
    return {
        "digest": view.digest,
        "length": len(view),
        "repr": repr(view),
        "reference": attempted(lambda: view.reference),
        "metadata": view.metadata,
        "spec": hashed(lambda: repr(view.element_spec)),
        "raw spec": hashed(lambda: repr(view.raw().element_spec)) if hasattr(view, "raw") else None,
        "erased": erased,
        "sources": hashed(lambda: [span[1:] for row in range(len(view)) for span in view.sources(row)]),
        "lengths": [hashed(partial(view.lengths, name)) for name in names],
        "totals": [attempted(partial(view.total, name)) for name in names],
        "element": hashed(lambda: there[len(there) // 2]) if len(there) else None,
        "elements of some": hashed(lambda: list(there.__getitems__(shown(len(there))))),
        "batch": hashed(lambda: there.read(range(0, len(there), 2))),
        "some keys": hashed(lambda: there.read(slice(3), fields=names[-1])),
        "split": hashed(lambda: [part.digest for part in view.split(SPLIT, seed=7).values()]),
        "folds": hashed(lambda: [held.digest for _, held in view.folds(2, seed=7)]),
        "nbytes": view.nbytes if hasattr(view, "nbytes") else None,
        **facts_of_records(records_of(view)),
        **facts_of_stream(there.stream(4, shuffle=True, seed=5)),
        "blocks": attempted(lambda: there.stream(2, shuffle="blocks", seed=5).record_numbers(0).tolist()),
    }


def shown(length: int) -> list[int]:
    return sorted({*range(min(length, 3)), *range(max(0, length - 2), length)})


def facts_of_records(records: Any) -> dict[str, Any]:
    info = records.info
    origins = records.origins
    digests = origins.digests
    return {
        "rows": digests.rows,
        "original": digests.original,
        "elements": digests.elements,
        "has plan": digests.planned != digests.rows,
        "is plan": digests.is_plan,
        "title": records.title,
        "name": info.name,
        "sizes": [info.record_nbytes, info.read_nbytes, info.records_per_read, info.together],
        "cost": info.reading_cost,
        "is declared": info.is_declared,
        "requests": takes_requests(records),
        "needed": sorted(len(numbers) for numbers in records.needed(np.arange(len(records))[:3]).values()),
        "segments": list(origins.segments),
        "references": len(origins.references),
        "undecoded": None if records.undecoded() is None else records.undecoded().origins.digests.elements,
    }


def facts_of_stream(stream: Any) -> dict[str, Any]:
    """Return the state after a step, and the numbers of the records and the sources of the first."""
    if not attempted(lambda: len(stream)):
        return {}
    iterator = iter(stream)
    batch = hashed(lambda: next(iterator))
    state = iterator.get_state()
    sources = stream.sources(0)
    return {
        "state": hashed(lambda: json.loads(json.dumps(state))),
        "step": batch,
        "numbers": stream.record_numbers(0).tolist(),
        "records": hashed(lambda: [sources.element, sources.record, sources.begin, sources.end]),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(tmp_path_factory.mktemp("views"))


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_is_known_by_what_it_was_known_by(made: Versions, kind: str) -> None:
    if "media" in kind:
        pytest.importorskip("av")
        pytest.importorskip("PIL")
    assert facts_of(kind, made) == json.loads(TABLE.read_text())[kind]


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_view_begins_with_the_view_before_an_append(made: Versions, kind: str) -> None:
    assert begins(made, kind) == json.loads(TABLE.read_text())["beginnings"][kind]


def begins(made: Versions, kind: str) -> list[Any]:
    old = records_of(BEGINNINGS[kind](made))
    new = records_of(VIEWS[kind](made))
    return [
        len(old),
        new.origins.begins_with(len(old), old.origins.digests.rows),
        new.origins.begins_with(len(new), new.origins.digests.rows),
    ]


def write() -> None:
    """Write the table anew."""
    with tempfile.TemporaryDirectory() as folder:
        made = Versions(Path(folder))
        facts: dict[str, Any] = {kind: facts_of(kind, made) for kind in VIEWS}
        facts["beginnings"] = {kind: begins(made, kind) for kind in BEGINNINGS}
    lines = [f"{json.dumps(kind)}: {json.dumps(each)}" for kind, each in facts.items()]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
