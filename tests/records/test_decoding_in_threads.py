"""Images and sounds decode to the same values and raise the same errors however many threads share them."""

import signal
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forks import in_a_fork
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures_and_sounds import PIXELS, SOUNDS, png, wav
from PIL import Image
from reading_threads import reading_threads

from cachelayer import AudioSpec, CacheLayerWarning, DataRef, ElementError, ImageSpec, Nullable, Ragged, Storage

COUNT = 40
SPEC = {"image": ImageSpec(), "sound": AudioSpec(), "n": np.int64}


def element(number: int) -> dict[str, Any]:
    image = None if number % 7 == 3 else png(PIXELS[number % len(PIXELS)])
    return {"image": image, "sound": wav(SOUNDS[number % len(SOUNDS)]), "n": number}


def png_of_size(width: int, height: int) -> bytes:
    """The beginning of a PNG file, which says how large the image is."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    Storage(folder).submit(map(element, range(COUNT)), "d@v", element_spec=SPEC)
    return folder


@pytest.fixture(autouse=True, scope="module")
def every_file_is_shared() -> Iterator[None]:
    with reading_threads(3):
        yield


@cache
def ref_of(folder: Path) -> DataRef[Any]:
    return Storage(folder).fetch("d@v")


def plain(value: Any) -> Any:
    """What numpy can compare."""
    if isinstance(value, Nullable):
        return value.valid, plain(value.values)
    if isinstance(value, Ragged):
        return [value.row_splits.tolist(), *(row.tolist() for row in value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [*map(plain, value)] if isinstance(value, list) else value


def assert_equal(left: Any, right: Any) -> None:
    np.testing.assert_equal(plain(left), plain(right))


WAYS: dict[str, Callable[[Any, list[int]], Any]] = {
    "read": lambda ref, numbers: ref.read(numbers),
    "elements": lambda ref, numbers: ref.__getitems__(numbers),
    "batches": lambda ref, numbers: list(ref.select(numbers).stream(7)),
    "mapped": lambda ref, numbers: list(ref.select(numbers).stream(7).map(lambda one: one)),
    "one by one": lambda ref, numbers: list(ref.select(numbers)),
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=8)
@given(numbers=st.lists(st.integers(0, COUNT - 1), max_size=30), is_sized=st.booleans())
def test_any_number_of_threads_decodes_the_same_in_the_same_order(
    folder: Path, way: str, numbers: list[int], is_sized: bool
) -> None:
    ref = ref_of(folder).decoded(size=(3, 5)) if is_sized else ref_of(folder)
    with reading_threads(1):
        alone = WAYS[way](ref, numbers)
    assert_equal(WAYS[way](ref, numbers), alone)


def test_elements_of_any_number_of_threads_may_be_changed_and_do_not_share_memory(folder: Path) -> None:
    for view in (ref_of(folder), ref_of(folder).decoded(size=(3, 5))):
        left, right = view.__getitems__([1, 1])
        left["image"][:] = left["sound"][:] = 0
        np.testing.assert_equal(right, view[1])


DAMAGED = {
    "cut short": png(PIXELS[0])[:60],
    "a bomb": png_of_size(20_000, 10_000),
    "no pixels": b"GIF89a",
    "empty": b"",
}


@pytest.mark.parametrize("size", [None, (3, 5)])
@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
def test_the_error_names_the_first_record_that_does_not_decode(tmp_path: Path, size: Any, damaged: bytes) -> None:
    rows = [{"image": damaged if number in (5, 6, 11) else png(PIXELS[number])} for number in range(14)]
    Storage(tmp_path).submit(rows, "d@v", element_spec={"image": ImageSpec()}, validate=False)
    view = ref_of(tmp_path) if size is None else ref_of(tmp_path).decoded(size=size)
    assert ref_of(tmp_path).raw()[5] == rows[5]
    for way in WAYS.values():
        for count in (1, 3):
            with reading_threads(count), pytest.raises(ElementError, match=r"record 5, leaf \['image'\]"):
                way(view, [*range(1, 14)])


def test_a_picture_bomb_is_refused_before_its_pixels_are_made(tmp_path: Path) -> None:
    ref = Storage(tmp_path).submit([png_of_size(60_000, 60_000)], "d@v", element_spec=ImageSpec(), validate=False)
    with pytest.raises(ElementError, match="DecompressionBombError"):
        ref.decoded(size=(8, 8)).read([0])


def test_any_number_of_threads_replaces_the_same_records(tmp_path: Path) -> None:
    rows = [{"image": b"no image" if number % 4 == 2 else png(PIXELS[number])} for number in range(20)]
    Storage(tmp_path).submit(rows, "d@v", element_spec={"image": ImageSpec()}, validate=False)
    found = []
    ref = ref_of(tmp_path)
    for count in (1, 3):
        stream = ref.decoded(size=(4, 4)).stream(10, shuffle=True, seed=1, num_epochs=1)
        batches = iter(stream.map(lambda one: one, on_error="replace", max_failures=99))
        with reading_threads(count), pytest.warns(CacheLayerWarning, match="stands in"):
            read = [*batches]
        found.append((read, [(failure.record, failure.position) for failure in batches.failures]))
    assert_equal(*found)
    assert found[0][1]


def test_an_interrupt_while_images_are_decoded_ends_the_read_and_the_next_one_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = ref_of(folder)
    opened, first, ended = Image.open, threading.Lock(), threading.Event()

    def interrupting(*args: Any) -> Any:
        if first.acquire(blocking=False):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert ended.wait(30)
        return opened(*args)

    monkeypatch.setattr(Image, "open", interrupting)
    with pytest.raises(KeyboardInterrupt):
        ref.read(range(COUNT))
    monkeypatch.setattr(Image, "open", opened)
    ended.set()
    after = ref.read(range(COUNT))
    with reading_threads(1):
        assert_equal(ref.read(range(COUNT)), after)


def test_a_forked_child_decodes_with_threads_of_its_own(folder: Path) -> None:
    before = ref_of(folder).read(range(COUNT))
    assert_equal(in_a_fork(lambda: ref_of(folder).read(range(COUNT))), before)
