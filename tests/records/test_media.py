"""Images and sounds: bytes in the cache, arrays for readers."""

import io
import json
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from pictures_and_sounds import PIXELS, SOUNDS, png, wav
from PIL import Image

import cachelayer
from cachelayer import ArraySpec, AudioSpec, ElementError, FormatError, ImageSpec, Nullable, Ragged
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs import spec_json


@pytest.fixture
def storage(tmp_path: Path) -> cachelayer.Storage:
    return cachelayer.Storage(tmp_path)


@pytest.fixture
def images(storage: cachelayer.Storage) -> cachelayer.DataRef[Any]:
    rows = [{"image": png(pixels), "label": i} for i, pixels in enumerate(PIXELS)]
    return storage.submit(rows, "images@v1", element_spec={"image": ImageSpec(), "label": np.int64})


def test_images_are_read_as_pixels_and_raw_as_bytes(images: cachelayer.DataRef[Any]) -> None:
    raw = images.raw()
    assert images.element_spec == {"image": ArraySpec(np.uint8, (None, None, 3)), "label": ArraySpec(np.int64)}
    assert raw.element_spec == {"image": ImageSpec(), "label": ArraySpec(np.int64)}
    assert raw.digest == images.digest
    batch = images.read(range(20))["image"]
    assert isinstance(batch, Ragged)
    for i, pixels in enumerate(PIXELS):
        np.testing.assert_array_equal(images[i]["image"], pixels)
        np.testing.assert_array_equal(batch[i], pixels)
        assert raw[i] == {"image": png(pixels), "label": i}
    assert raw.read([3])["image"].tolist() == [png(PIXELS[3])]
    assert len(images.read([])["image"]) == 0


def test_views_streams_and_joined_datasets_decode_as_their_parts_do(images: cachelayer.DataRef[Any]) -> None:
    for batch in images[4:].stream(8, shuffle=True, seed=1):
        for row, label in zip(batch["image"], batch["label"], strict=True):
            np.testing.assert_array_equal(row, PIXELS[label])
    joined = cachelayer.concat([images[:5], images[3:]])
    for same in (joined, pickle.loads(pickle.dumps(joined))):
        np.testing.assert_array_equal(same[6]["image"], PIXELS[4])
    assert cachelayer.concat([images.raw(), images.raw()])[24] == {"image": png(PIXELS[4]), "label": 4}
    with pytest.raises(ValueError, match=r"\['image'\]"):
        cachelayer.concat([images, images.raw()])


@pytest.mark.parametrize(("mode", "dtype", "channels"), [("L", "u1", ()), ("RGBA", "u1", (4,)), ("1", "?", ())])
def test_pixels_come_in_the_mode_that_was_declared(
    storage: cachelayer.Storage, mode: str, dtype: str, channels: Any
) -> None:
    ref = storage.submit([png(PIXELS[0])], "d@v1", element_spec=ImageSpec(mode))
    assert ref.element_spec == ArraySpec(dtype, (None, None, *channels))
    np.testing.assert_array_equal(ref[0], np.asarray(Image.fromarray(PIXELS[0]).convert(mode)))


def test_deep_pixels_are_kept_or_refused_never_cut_off(storage: cachelayer.Storage) -> None:
    deep = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    kept = storage.submit([png(deep)], "d@v1", element_spec=ImageSpec("I;16"))
    np.testing.assert_array_equal(kept[0], deep)
    big_endian = io.BytesIO()
    Image.fromarray(deep.astype(">u2")).save(big_endian, "TIFF")
    for file in (png(deep), big_endian.getvalue()):
        with pytest.raises(ElementError, match=r"I;16.*, which RGB would cut off.*'I;16'"):
            storage.submit([file], "d@v2", element_spec=ImageSpec())


def test_images_that_are_none_stay_none_and_what_is_no_bytes_is_refused(storage: cachelayer.Storage) -> None:
    rows: list[Any] = [{"image": png(PIXELS[0])}, {"image": None}]
    ref = storage.submit(rows, "d@v1", element_spec={"image": ImageSpec()})
    assert ref.element_spec == {"image": ArraySpec(np.uint8, (None, None, 3), nullable=True)}
    assert ref[1] == {"image": None}
    batch = ref.read([0, 1])["image"]
    assert isinstance(batch, Nullable)
    assert batch.valid.tolist() == [True, False]
    np.testing.assert_array_equal(batch.values[0], PIXELS[0])
    with pytest.raises(ElementError, match=r"\['image'\]"):
        storage.submit([{"image": PIXELS[0]}], "d@v2", element_spec={"image": ImageSpec()})


def test_sounds_are_read_as_samples(storage: cachelayer.Storage) -> None:
    # libsndfile writes the second into each file, so that one encoded later may be another.
    files = [wav(samples) for samples in SOUNDS]
    ref = storage.submit(files, "d@v1", element_spec=AudioSpec())
    assert ref.element_spec == ArraySpec(np.float32, (None, None))
    for i, samples in enumerate(SOUNDS):
        np.testing.assert_array_equal(ref[i], samples)
    assert [len(row) for row in ref.read([2, 5])] == [52, 55]
    assert ref.raw()[3] == files[3]


def test_sounds_have_as_many_samples_as_were_counted_once(
    storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"audio": None if number == 2 else wav(samples)} for number, samples in enumerate(SOUNDS)]
    spec = {"audio": AudioSpec(channels=1, nullable=True)}
    storage.submit(rows, "d@v1", element_spec=spec)
    storage.submit([row for row in rows if row["audio"]], "d@v2", element_spec={"audio": AudioSpec(channels=1)})
    storage.erase("d@v1", records=[3], reason="asked for")
    wanted = [0 if number in (2, 3) else len(samples) for number, samples in enumerate(SOUNDS)]
    assert storage.fetch("d@v1").lengths("audio").tolist() == wanted
    ref, whole = storage.fetch("d@v1"), storage.fetch("d@v2")
    files = [len(row["audio"] or b"") for row in rows]
    assert np.delete(ref.raw().lengths("audio"), 3).tolist() == np.delete(files, 3).tolist()
    assert ref[::-1].lengths("audio").tolist() == wanted[::-1]
    assert ref.total("audio") == sum(wanted)
    longer = ref.where("len(audio) > 52")
    assert [len(element["audio"]) for element in longer] == [length for length in wanted if length > 52]
    assert whole.stream(len(whole)).count("audio") == {"d@v2": whole.total("audio")}
    for batch in whole.stream(2, buckets=("audio", [52, 80])):
        assert batch["audio"].shape[1] in (52, 80)
    # The samples are counted once, and their numbers stored.
    monkeypatch.setattr(cachelayer.records.media.MediaFiles, "decode", None)
    assert storage.fetch("d@v1").lengths("audio").tolist() == wanted


def test_channels_are_their_mean_or_those_that_were_declared(storage: cachelayer.Storage) -> None:
    files = [wav(SOUNDS[0]), wav(SOUNDS[1][:, 0])]
    one = storage.submit(files, "d@v1", element_spec=AudioSpec(channels=1))
    assert one.element_spec == ArraySpec(np.float32, (None,))
    np.testing.assert_allclose(one[0], SOUNDS[0].mean(axis=1), rtol=1e-6)
    two = storage.submit(files[:1], "d@v2", element_spec=AudioSpec(channels=2))
    np.testing.assert_array_equal(two[0], SOUNDS[0])
    with pytest.raises(ElementError, match="record 1"):
        storage.submit(files, "d@v4", element_spec=AudioSpec(channels=2))
    with pytest.raises(ElementError, match="the bytes of a sound file"):
        storage.submit([SOUNDS[0]], "d@v3", element_spec=AudioSpec())


def test_sounds_are_resampled_to_the_rate_that_was_declared(storage: cachelayer.Storage) -> None:
    tones = {rate: np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32) for rate in (8000, 16000)}
    spec = AudioSpec(sampling_rate=16000, channels=1)
    ref = storage.submit([wav(tone, rate) for rate, tone in tones.items()], "d@v1", element_spec=spec)
    np.testing.assert_array_equal(ref[1], tones[16000])
    assert len(ref[0]) == 16000
    np.testing.assert_allclose(ref[0][1000:-1000], tones[16000][1000:-1000], atol=1e-3)


FORMATS = [
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("RF64", "PCM_16"), ("W64", "PCM_16"),
    ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("FLAC", "PCM_16"),
    ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "encoding"), FORMATS)
def test_a_cut_sound_is_refused_as_a_cut_picture_is(storage: cachelayer.Storage, container: str, encoding: str) -> None:
    file = io.BytesIO()
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, (48_000, 2)).astype(np.float32)
    soundfile.write(file, samples, 48_000, format=container, subtype=encoding)
    data = file.getvalue()
    cuts = [data, *(data[: int(len(data) * share)] for share in (0.99, 0.9, 0.5, 0.1)), data[:-1]]
    for record in range(1, len(cuts)):
        with pytest.raises(ElementError):
            storage.submit(cuts[record : record + 1], "d@v1", element_spec=AudioSpec())
    with pytest.warns(cachelayer.CacheLayerWarning, match="left out"):
        kept = storage.submit(cuts, "d@v2", element_spec=AudioSpec(), on_error="skip")
    assert len(kept) == 1
    assert len(kept[0]) >= len(samples)


def test_a_cut_at_the_end_of_a_page_and_a_length_that_nobody_knew(storage: cachelayer.Storage) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.tile(SOUNDS[0], (2000, 1)), 16000, format="OGG", subtype="VORBIS")
    ogg = file.getvalue()
    streamed = bytearray(wav(SOUNDS[0]))
    start = streamed.index(b"data") + 4
    streamed[start : start + 4] = b"\xff" * 4
    files = [ogg[: ogg.rindex(b"OggS")], bytes(streamed)]
    with pytest.raises(ElementError, match="last page"):
        storage.submit(files, "d@v1", element_spec=AudioSpec())
    ref = storage.submit(files[1:], "d@v1", element_spec=AudioSpec())
    np.testing.assert_array_equal(ref[0], SOUNDS[0])


def test_the_bytes_of_files_are_no_samples(storage: cachelayer.Storage) -> None:
    files = [{"sound": wav(samples[:, :1]), "n": len(samples)} for samples in SOUNDS]
    spec = {"sound": AudioSpec(channels=1), "n": np.int64}
    ref = storage.submit(files, "d@v1", element_spec=spec)
    assert ref.raw().lengths("sound").tolist() == [len(file["sound"]) for file in files]
    padded = ref.padded({"sound": 60}, long="truncate")
    assert [row["sound_length"] for row in padded] == [min(60, len(samples)) for samples in SOUNDS]
    lengths = [len(samples) for samples in SOUNDS]
    assert ref.lengths("sound").tolist() == lengths
    assert [row["sound_length"] for row in ref.padded({"sound": max(lengths)})] == lengths
    both = storage.submit([{"sound": file["sound"]} for file in files], "d@v2", element_spec={"sound": AudioSpec()})
    assert both.lengths("sound").tolist() == lengths
    with pytest.raises(InvalidArgumentError, match="channels=1"):
        both.padded({"sound": 60})


def deep_png(pixels: Any, colour: int) -> bytes:
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 16, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def deep_tiff(pixels: Any) -> bytes:
    height, width, channels = pixels.shape
    data = pixels.astype("<u2").tobytes()
    tags = [(256, 3, 1, width), (257, 3, 1, height), (258, 3, channels, 8 + len(data)), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 1, 8), (277, 3, 1, channels), (278, 3, 1, height), (279, 4, 1, len(data))]
    bits = struct.pack(f"<{channels}H", *[16] * channels)
    begin = 8 + len(data) + len(bits)
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<I", begin) + data + bits + struct.pack("<H", len(tags)) + entries + bytes(4)


def with_bits(data: bytes, marker: bytes, place: int, value: int) -> bytes:
    """The file of an image whose header says that its channels have other bits."""
    changed = bytearray(data)
    changed[changed.index(marker) + place] = value
    return bytes(changed)


def saved(container: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(file, container)
    return file.getvalue()


DEEP = np.random.default_rng(0).integers(0, 1 << 16, (5, 4, 4), np.uint16)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "I", "F"])
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(deep_png(DEEP[..., :3], 2), id="png"),
        pytest.param(deep_png(DEEP, 6), id="png with alpha"),
        pytest.param(deep_png(DEEP[..., :2], 4), id="grey png with alpha"),
        pytest.param(deep_tiff(DEEP[..., :3]), id="tiff"),
        pytest.param(b"P6\n4 5\n65535\n" + DEEP[..., :3].astype(">u2").tobytes(), id="ppm"),
        pytest.param(b"P6\n4 5\n1023\n" + (DEEP[..., :3] % 1024).astype(">u2").tobytes(), id="ppm of 10 bits"),
        pytest.param(b"P3 4 5 65535 " + " ".join(map(str, DEEP[..., :3].ravel())).encode(), id="ppm in text"),
        pytest.param(with_bits(saved("JPEG2000"), b"\xff\x4f\xff\x51", 42, 15), id="jpeg 2000"),
    ],
)
def test_colours_of_more_than_8_bits_are_refused_by_name(storage: cachelayer.Storage, file: bytes, mode: str) -> None:
    with pytest.raises(ElementError, match=r"1[026] bits a channel"):
        storage.submit([file], "d@v1", element_spec=ImageSpec(mode))
    ref = storage.submit([file], "d@v1", element_spec=ImageSpec(mode), validate=False)
    for read in (lambda: ref[0], lambda: ref.decoded("", size=(2, 2))[0]):
        with pytest.raises(ElementError, match=r"1[026] bits a channel"):
            read()
    assert ref.raw()[0] == file


@pytest.mark.parametrize("container", ["PNG", "TIFF", "PPM", "JPEG2000", "SGI", "BMP", "WEBP", "GIF"])
def test_colours_of_8_bits_are_read_from_any_file(storage: cachelayer.Storage, container: str) -> None:
    ref = storage.submit([saved(container)], "d@v1", element_spec=ImageSpec())
    assert ref[0].shape == PIXELS[0].shape


@pytest.mark.parametrize(
    "spec", [ImageSpec(), ImageSpec("P", upright=False, nullable=True), AudioSpec(16000, 1, nullable=True)]
)
def test_hints_come_back_from_the_manifest(spec: Any) -> None:
    node = json.loads(json.dumps(spec_json.to_json({"x": spec})))
    assert spec_json.from_json(node) == {"x": spec}
    assert spec_json.to_json(spec_json.from_json(node)) == node


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: ImageSpec("PA"), InvalidArgumentError),
        (lambda: ImageSpec(["L"]), InvalidArgumentError),  # type: ignore[arg-type]
        (lambda: ImageSpec(upright="yes"), InvalidTypeError),
        (lambda: AudioSpec(0), InvalidArgumentError),
        (lambda: AudioSpec(channels=True), InvalidTypeError),
        (lambda: spec_json.from_json({"kind": "image"}), FormatError),
        (lambda: spec_json.from_json({"kind": "image", "mode": "PA"}), FormatError),
        (lambda: spec_json.from_json({"kind": "image", "mode": "RGB", "quality": 1}), FormatError),
        (lambda: spec_json.from_json({"kind": "audio", "sampling_rate": "16k", "channels": None}), FormatError),
        (lambda: spec_json.from_json({"kind": "video", "mode": "RGB"}), FormatError),
    ],
)
def test_hints_that_cannot_be_are_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(("module", "spec", "extra"), [("PIL", "Image", "image"), ("soundfile", "Audio", "audio")])
def test_without_its_package_the_error_names_the_extra_and_raw_still_reads(
    tmp_path: Path, module: str, spec: str, extra: str
) -> None:
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "import cachelayer\n"
        "import warnings; warnings.simplefilter('error')\n"
        f"options = {{'element_spec': cachelayer.{spec}Spec()}}\n"
        f"storage = cachelayer.Storage({str(tmp_path)!r})\n"
        "try:\n    storage.submit([b'x'], 'd', 'v1', **options)\n"
        "except cachelayer.CacheLayerWarning as warning:\n    print(warning)\n"
        "warnings.simplefilter('ignore')\n"
        "ref = storage.submit([b'x'], 'd', 'v1', **options)\n"
        "print(ref.raw()[0], ref.element_spec)\n"
        "try:\n    ref[0]\nexcept ImportError as error:\n    print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    warning, read, error = found.stdout.splitlines()
    assert read.startswith("b'x' ArraySpec(")
    assert f"cachelayer[{extra}]" in warning
    assert f"cachelayer[{extra}]" in error


def flac(frames_stated: int) -> bytes:
    """A file of 100 frames, whose header states another number of 36 bits."""
    file = io.BytesIO()
    soundfile.write(file, np.zeros(100, np.float32), 8000, format="FLAC")
    raw = bytearray(file.getvalue())
    raw[21] = raw[21] & 0xF0 | frames_stated >> 32
    raw[22:26] = struct.pack(">I", frames_stated & 0xFFFF_FFFF)
    return bytes(raw)


def bmp(width: int, height: int) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + header


TOO_LARGE: dict[str, tuple[bytes, Any]] = {
    "a sound that states more frames than it has": (flac(2**36 - 1), AudioSpec()),
    "a sound of one channel": (flac(2**30), AudioSpec(channels=1)),
    "a rate that makes many samples of few": (wav(SOUNDS[0]), AudioSpec(sampling_rate=2**50)),
    "an image": (bmp(40_000, 40_000), ImageSpec()),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_file_that_would_be_decoded_to_4_gib_is_refused_by_what_it_states(
    storage: cachelayer.Storage, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Programs with large images lift the limit of Pillow.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    file, spec = TOO_LARGE[name]
    with pytest.raises(ElementError, match=r"leaf \['file'\].*a leaf has less than 4294967296"):
        storage.submit([{"file": file}], "d@v1", element_spec={"file": spec})


def test_an_image_that_is_a_program_is_not_run(storage: cachelayer.Storage) -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(file, "EPS")
    with pytest.raises(ElementError, match="Ghostscript"):
        storage.submit([file.getvalue()], "d@v1", element_spec=ImageSpec())
    ref = storage.submit([file.getvalue()], "d@v1", element_spec=ImageSpec(), validate=False)
    with pytest.raises(ElementError, match="Ghostscript"):
        ref[0]
