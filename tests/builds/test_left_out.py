"""Elements that cannot be kept: an error, or left out and counted."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import cachelayer
from cachelayer import ArraySpec, CacheLayerWarning, ElementError, ImageSpec, InvalidArgumentError, Storage, sharded
from cachelayer.builds.batches import ElementBatch
from cachelayer.builds.encode import Checks, Encoder
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.leaf_columns import Columns


def rows(count: int, bad: set[int]) -> list[dict[str, Any]]:
    return [{"n": n, "x": np.zeros(4 if n in bad else 3, np.float32)} for n in range(count)]


SPEC = {"n": ArraySpec("int64"), "x": ArraySpec("float32", (3,))}  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{0}, {1499, 1500, 2999}, set(range(3000))])
def test_what_does_not_fit_is_left_out_and_counted(storage: Storage, bad: set[int]) -> None:
    first = min(bad)
    with pytest.warns(CacheLayerWarning, match=rf"^{len(bad)} of 3000 records were left out\. .*record {first}, .*'x'"):
        ref = storage.submit(rows(3000, bad), "d@v1", element_spec=SPEC, on_error="skip", allow_empty=True)
    assert [int(row["n"]) for row in ref.stream()] == sorted(set(range(3000)) - bad)
    left_out = ref.provenance["left_out"]
    assert left_out["records"] == len(bad)
    assert len(left_out["first"]) == min(10, len(bad))
    assert left_out["first"][0].startswith(f"record {first}, leaf ['x']: expected float32[3], got float32[4]")
    assert storage.verify("d@v1")


class CountedBatch(ElementBatch):
    encoded: ClassVar[list[int]] = []

    def columns(self, codec: Codec) -> Columns:
        self.encoded.append(len(self))
        return super().columns(codec)

    def __getitem__(self, some: slice) -> CountedBatch:
        return CountedBatch(self.items[some])


def test_what_does_not_fit_is_found_by_halves() -> None:
    encoder = Encoder(codec_for(SPEC), Checks(skips=True))
    assert len(encoder.encode(CountedBatch(rows(8192, {5000, 8191})))) == 8190
    assert encoder.result.left_out == 2
    assert sum(CountedBatch.encoded) < 6 * 8192
    assert len(CountedBatch.encoded) < 60


SECRET = "4111-1111"


BAD: list[tuple[Any, Any]] = [
    ({"n": 1, "x": SECRET}, SPEC),
    ({"n": SECRET, "x": np.zeros(3, np.float32)}, SPEC),
    ({SECRET: 1}, SPEC),
    ({"n": 1, "x": np.array([SECRET], object)}, SPEC),
    ({"n": SECRET.encode(), "x": {SECRET: SECRET}}, SPEC),
    ({"image": SECRET.encode()}, {"image": ImageSpec()}),
    ({"text": [SECRET]}, {"text": str}),
]


@pytest.mark.parametrize(("bad", "spec", "workers"), [*((*case, 1) for case in BAD), (*BAD[0], 2)], ids=str)
@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
def test_no_value_of_what_is_left_out_is_stored(tmp_path: Path, bad: Any, spec: Any, workers: int) -> None:
    storage = Storage(tmp_path)
    sources = {"sequence": [bad] * 50, "iterator": lambda: iter([bad] * 50), "parts": sharded(lambda *_: [bad], 2)}
    for name, source in sources.items():
        if workers == 1 or name != "iterator":
            options: Any = {"element_spec": spec, "on_error": "skip", "workers": workers, "allow_empty": True}
            ref = storage.submit(source, f"{name}@v1", **options)
            assert ref.provenance["left_out"]["first"][0].count("record 0")
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(stored) > 3
    assert not [path for path in stored if SECRET.encode() in path.read_bytes()]


def test_where_nothing_is_left_out_nothing_is_said(storage: Storage) -> None:
    ref = storage.submit(rows(50, set()), "d@v1", on_error="skip")
    assert "left_out" not in ref.provenance
    assert ref.digest == storage.submit(rows(50, set()), "d@v2").digest


def test_by_default_it_is_an_error_and_a_source_that_fails_always_is(storage: Storage) -> None:
    with pytest.raises(ElementError, match="record 1500, leaf"):
        storage.submit(rows(3000, {1500}), "d@v1", element_spec=SPEC)
    with pytest.raises(InvalidArgumentError, match="'ignore'"):
        storage.submit([1], "d@v1", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(cachelayer.SourceError, match="record 0: ZeroDivisionError"):
        storage.submit((1 // n for n in range(2)), "d@v1", on_error="skip")


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (number, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("bulk", [False, True])
def test_images_that_do_not_decode_are_left_out(storage: Storage, bulk: bool) -> None:
    files = [png(number) for number in range(30)]
    files[7], files[20] = files[7][:20], b"no image"
    columns = pa.table({"image": pa.array(files, pa.binary()), "n": np.arange(30)})
    source: Any = columns if bulk else [{"image": file, "n": np.int64(n)} for n, file in enumerate(files)]
    spec = {"image": ImageSpec(), "n": ArraySpec("int64")}  # type: ignore[arg-type]
    with pytest.warns(CacheLayerWarning, match="'image'"):
        ref = storage.submit(source, "d@v1", element_spec=spec, on_error="skip")
    assert [int(element["n"]) for element in ref.stream()] == sorted(set(range(30)) - {7, 20})
    assert [int(element["image"][0, 0, 0]) for element in ref.stream()] == sorted(set(range(30)) - {7, 20})
