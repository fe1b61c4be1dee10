"""Our own refs, views and streams as sources: the copy has their spec and their records."""

import io
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import ArraySpec, ImageSpec, Ragged, RaggedSpec, Sparse, SparseSpec, Storage
from cachelayer.errors import ElementError, InvalidArgumentError

Row = namedtuple("Row", ["ragged", "any_length", "sparse", "text"])
SPEC = Row(
    RaggedSpec("int64", (None, None)),
    ArraySpec("int64", (None,), nullable=True),
    SparseSpec("float64", (20,)),
    ArraySpec(str, nullable=True),
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    storage = Storage(tmp_path_factory.mktemp("records"))
    rows = [
        Row(
            Ragged(np.arange(number), np.array([0, number])),
            None if number % 2 else np.arange(number),
            Sparse(np.array([[number]]), np.ones(1), np.array([20])),
            "text",
        )
        for number in range(20)
    ]
    storage.submit(rows, "rows@v1", element_spec=SPEC)
    storage.submit(
        [{"x": np.float32(number), "y": None if number == 3 else number} for number in range(10)], "small@v1"
    )
    return storage


COPIES: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "ref": (lambda ref: ref, {}),
    "workers": (lambda ref: ref, {"workers": 2}),
    "selection": (lambda ref: ref.select(range(20)), {}),
    "concat": (lambda ref: cachelayer.concat([ref[:7], ref[7:]]), {}),
    "endless stream": (lambda ref: ref.stream(num_epochs=None), {"max_records": 20}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", COPIES)
def test_a_copy_has_the_spec_and_the_records(storage: Storage, case: str) -> None:
    make, options = COPIES[case]
    ref = storage.fetch("rows@v1")
    copied = storage.cache(make(ref), f"copy-{case.replace(' ', '-')}@v1", **options)
    assert copied.element_spec == ref.element_spec
    assert copied.digest == ref.digest
    assert type(copied[3]).__name__ == "Row"


def test_a_ref_is_appended_to_what_its_elements_fit(storage: Storage) -> None:
    base = storage.cache([np.arange(2)], "longer@v1", element_spec=ArraySpec("int64", (None,)))
    other = storage.cache([np.arange(3), np.arange(3)], "of-three@v1")
    for version, source in (("v2", other), ("v3", other.stream()), ("v4", cachelayer.wrap(other, identity="other"))):
        ref = storage.append("longer@v1", version, source)
        assert (len(ref), ref.element_spec) == (3, base.element_spec)
    with pytest.raises(InvalidArgumentError, match="longer@v1"):
        storage.append("longer@v1", "v5", storage.cache([np.zeros(3)], "floats@v1"))


def test_a_copy_of_nothing_has_the_spec(storage: Storage) -> None:
    ref = storage.fetch("rows@v1")
    assert storage.cache(ref[:0], "nothing@v1", allow_empty=True).element_spec == ref.element_spec


def test_an_endless_stream_needs_a_limit(storage: Storage) -> None:
    ref = storage.fetch("rows@v1")
    for stream in (ref.stream(num_epochs=None), cachelayer.mix([(ref, 1)]).stream()):
        with pytest.raises(InvalidArgumentError, match="max_records="):
            storage.cache(stream, "endless@v1")


def test_what_a_stream_gives_are_the_elements(storage: Storage) -> None:
    ref = storage.fetch("small@v1")
    apart = storage.cache(ref.stream(4), "apart@v1", unbatch=True)
    assert (apart.element_spec, apart.digest) == (ref.element_spec, ref.digest)
    with pytest.raises(ElementError, match=r"leaf \['y'\]: .*unbatch=True"):
        storage.cache(ref.stream(4), "batches@v1")
    batches = storage.cache(ref.stream(5).map_batches(lambda batch: batch["x"]), "batches@v1")
    assert (len(batches), batches.element_spec) == (2, ArraySpec("float32", (5,)))
    mapped = storage.cache(ref.stream().map(lambda row: row["x"] * 2), "mapped@v1")
    assert (list(mapped), mapped.element_spec) == ([2 * number for number in range(10)], ArraySpec("float32"))


def _png(width: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (width, 2)).save(file, "PNG")
    return file.getvalue()


def test_images_stay_the_files_that_they_are_unless_a_spec_asks_for_pixels(storage: Storage) -> None:
    spec = {"image": ImageSpec(), "label": ArraySpec("int64")}
    ref = storage.cache(
        [{"image": _png(width + 1), "label": width} for width in range(4)], "images@v1", element_spec=spec
    )
    copies: dict[str, Any] = {"a": ref, "b": ref.raw(), "c": ref.stream(), "d": cachelayer.concat([ref[:2], ref[2:]])}
    for version, source in copies.items():
        copied = storage.cache(source, f"copied@{version}")
        assert (copied.digest, copied.raw().element_spec) == (ref.digest, spec)
    storage.append("images@v1", "v2", ref)
    assert storage.fetch("images@v2").raw()[5]["image"] == _png(2)
    pixels = storage.cache(ref, "pixels@v1", element_spec={**spec, "image": ArraySpec("uint8", (None, None, 3))})
    assert pixels[3]["image"].shape == (2, 4, 3)
    assert pixels.raw()[3]["image"].shape == (2, 4, 3)


class Reused:
    """Items that are written into the same array, and are None at first."""

    array = np.zeros(2)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        self.array[:] = number
        return {"x": self.array, "y": None if number == 0 else number}


def test_wrapped_items_keep_a_spec_that_was_declared(storage: Storage) -> None:
    spec = {"x": ArraySpec("float64", (None,)), "y": ArraySpec("int64", nullable=True)}
    declared = storage.cache(cachelayer.wrap(Reused(), identity="a", element_spec=spec), "wrapped@v1")
    assert declared.element_spec == spec
    seen = storage.cache(cachelayer.wrap(Reused(), identity="a"), "wrapped@v2")
    assert seen.element_spec == {"x": ArraySpec("float64", (2,)), "y": ArraySpec("int64", nullable=True)}
    for ref in (declared, seen):
        assert [row["x"].tolist() for row in ref] == [[number, number] for number in range(5)]
