"""Images and sounds: records store the bytes of their files, and readers get arrays.

::

    bytes of a file -- decoder(spec) --> array        ImageSpec("RGB")         uint8 [height, width, 3]
                                                      the same, with a size    uint8 [size.height, size.width, 3]
                                                      AudioSpec(16_000, 1)     float32 [frames]
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import (
    CacheLayerError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingDependencyError,
)
from cachelayer.records.conform import conform
from cachelayer.records.decoding_threads import in_threads
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.records.leaf_columns import Column, Columns
from cachelayer.records.video_codec import VideoReaders
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import leaf_numbers
from cachelayer.specs.schema import Flags, Schema, rows_in_any
from cachelayer.specs.spec import (
    IMAGE_MODES,
    AudioSpec,
    EncodedSpec,
    ImageSize,
    ImageSpec,
    LeafSpec,
    SizedImageSpec,
    SizedVideoSpec,
    VideoSpec,
    decoded_leaf,
    describe_leaf,
)
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import boolean, integer
from cachelayer.support.extras import packages_of
from cachelayer.support.memory import LEAF_NBYTES, Ints
from cachelayer.support.user_warnings import warn

if TYPE_CHECKING:
    from PIL import Image

# Of a larger size, readers would think that the file is damaged.
_MOST_PIXELS = (1 << 16) - 1
_WIDE_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
_VALUE_MODES = ("P", "I;16", "I", "F")
"""The modes whose pixels are values, such as numbers of classes or depths, and no colours."""
_UNMIXED_MODES = ("1", "P", "I;16", "I")
"""The modes in which a pixel between two others would be another class."""
_PIXEL_NBYTES = 4
"""The bytes that Pillow takes for a pixel at most."""
_SAMPLE_NBYTES = 4
_MOST = 255
"""The largest value of a channel that Pillow reads of colours."""
_IN_MEMORY = re.compile(" ?<_io.BytesIO object at 0x[0-9a-f]+>")
_TIFF_BITS = 258
"""The tag of a TIFF file that has the bits of each channel."""
_SCALED_FORMATS = ("JPEG", "MPO")
_SEEKABLE_SOUNDS = frozenset({"AIFF", "AU", "CAF", "FLAC", "RF64", "W64", "WAV", "WAVEX"})
"""Formats in which libsndfile finds a sample exactly; in others it depends on those before."""
_TURNED_BY_90_DEGREES = (5, 6, 7, 8)
"""The orientations in Exif of images whose width is the height of their pixels as they are stored."""


class MediaFiles:
    """Decodes the files of one leaf; many files in several threads."""

    def __init__(self, path: str, spec: EncodedSpec) -> None:
        self._path = path
        self._spec = spec
        self._decoded = decoded_leaf(spec)
        self.codec = leaf_codec_for(self._decoded)
        """The codec of the decoded files."""

    @property
    def _decode(self) -> Callable[[bytes], NDArray[Any]]:
        return decoder(self._spec)

    def decode(self, files: Column, absent: Flags | None, numbers: Ints | None, *, separate_rows: bool) -> Column:  # noqa: ARG002
        """Return the column of what files hold; an error has the row. Arrays of ``separate_rows`` share no memory."""
        [flat] = files.parts
        rows = range(len(flat.splits) - 1)

        def value_of(row: int) -> Any:
            if absent is not None and absent[row]:
                return self.codec.filler()
            return self._array(flat.row(row).tobytes(), row, self._decode)

        values = in_threads(value_of, rows)
        return Column((values,) if separate_rows else self.codec.encode(values))

    def value(self, *parts: NDArray[Any]) -> NDArray[Any]:
        """Return the array of one file."""
        return self._array(parts[0].tobytes(), 0, self._decode)

    def samples(self, data: bytes, numbers: Ints, record: int) -> NDArray[Any]:
        """Return some samples of a sound file, ascending; no others are decoded if its format allows that."""
        return self._array(data, record, partial(_decode_samples, cast(AudioSpec, self._spec), numbers))

    def check(self, files: Column, absent: Flags | None) -> None:
        """Raise unless all files decode."""
        [flat] = files.parts
        # All bytes of a JPEG file are read for one pixel too, in less time.
        decode = decoder(_sized_leaf(self._spec, ImageSize(1, 1)) if isinstance(self._spec, ImageSpec) else self._spec)

        def check_row(row: int) -> None:
            if absent is None or not absent[row]:
                data = flat.row(row).tobytes()
                with self._errors(data, row):
                    decoded = decode(data)
                    if isinstance(self._spec, AudioSpec):
                        conform(self._decoded, decoded, row)

        in_threads(check_row, range(len(flat.splits) - 1))

    def _array(self, data: bytes, row: int, decode: Callable[[bytes], NDArray[Any]]) -> NDArray[Any]:
        with self._errors(data, row, "ref.raw() gives the bytes."):
            array: NDArray[Any] = conform(self._decoded, decode(data), row)
        # Who gets an element may change it.
        return array if array.flags.writeable else array.copy()

    @contextmanager
    def _errors(self, data: bytes, row: int, hint: str = "") -> Iterator[None]:
        """Raise what a decoder raises as the error of a leaf."""
        try:
            yield
        except ElementError as error:
            raise error.at(path=self._path) from error.__cause__
        except (CacheLayerError, MemoryError):
            raise
        except Exception as error:
            reason = _IN_MEMORY.sub("", f"{type(error).__name__}: {error}")
            got = f"{len(data)} bytes that do not decode: {reason}" if data else "an empty file"
            raise ElementError(describe_leaf(self._spec), got, path=self._path, record=row, hint=hint) from error


Files = MediaFiles | VideoReaders


def files_of(path: str, spec: EncodedSpec) -> Files:
    """Return the decoder of a leaf of files."""
    return VideoReaders(path, spec) if isinstance(spec, VideoSpec) else MediaFiles(path, spec)


def check_files(schema: Schema, columns: Columns) -> None:
    """Raise unless every image and sound in the columns decodes; the record of the error is the row.

    Videos were read when their index was made. Without the packages that decode files, there is a warning.
    """
    for leaf, column in zip(schema.leaves, columns.leaves, strict=True):
        if isinstance(leaf.spec, EncodedSpec) and not isinstance(leaf.spec, VideoSpec):
            try:
                MediaFiles(leaf.path, leaf.spec).check(column, rows_in_any(columns.nulls, leaf.lineage))
            except MissingDependencyError as error:
                warn(f"leaf {leaf.path}: files are stored as they are, and not checked: {error}")


def image_size(size: Any, crop: Any) -> ImageSize:
    """Return the size that a user asks for."""
    if isinstance(size, (str, bytes)) or not isinstance(size, Sequence):
        raise InvalidTypeError(f"size {size!r} of type {type(size).__name__}: pass (height, width)")
    if len(size) != 2:
        raise InvalidArgumentError(f"size {size!r} has {len(size)} numbers: pass (height, width)")
    height, width = (integer(f"size {size!r}:", number, least=1) for number in size)
    if max(height, width) > _MOST_PIXELS:
        raise InvalidArgumentError(f"size {size!r}: height and width must be at most {_MOST_PIXELS}")
    return ImageSize(height, width, crop=boolean("crop", crop))


def image_leaves(spec: Tree, names: Sequence[str]) -> list[int]:
    """Return the numbers of the images and videos that these fields have; of all if no field is named."""
    images = [number for number, (_, leaf) in enumerate(tree.leaves(spec)) if isinstance(leaf, (ImageSpec, VideoSpec))]
    if not images:
        raise InvalidArgumentError(
            f"there are no images to decode: elements are {tree.describe(spec)}. Declare them when you cache, with "
            "element_spec= and ImageSpec() or VideoSpec()"
        )
    if not names:
        return images
    chosen: set[int] = set()
    for name in names:
        images_of_field = set(leaf_numbers(spec, [name])) & set(images)
        if not images_of_field:
            raise InvalidArgumentError(f"{name!r} is no image or video: elements are {tree.describe(spec)}")
        chosen |= images_of_field
    return sorted(chosen)


def sized_spec(spec: Tree, sizes: Mapping[int, ImageSize]) -> Tree:
    """Return a spec whose images and videos are decoded to sizes, given by the numbers of their leaves."""
    sized = {path: sizes[number] for number, (path, _) in enumerate(tree.leaves(spec)) if number in sizes}
    return tree.map_structure(spec, lambda path, leaf: _sized_leaf(leaf, sized[path]) if path in sized else leaf)


def _sized_leaf(leaf: LeafSpec, size: ImageSize) -> LeafSpec:
    if isinstance(leaf, ImageSpec):
        return SizedImageSpec(leaf.mode, leaf.upright, size, nullable=leaf.nullable)
    return SizedVideoSpec(size, nullable=leaf.nullable)


@cache
def decoder(spec: LeafSpec) -> Callable[[bytes], NDArray[Any]]:
    """Return the function that makes an array of the bytes of a file. Several threads may call it at once."""
    if isinstance(spec, ImageSpec):
        with packages_of("image", "images need Pillow"):
            import PIL.Image  # noqa: F401
        return lambda data: _pixels(spec, _opened(spec, data))
    if isinstance(spec, AudioSpec):
        return _audio_decoder(spec)
    raise InvalidTypeError(f"no decoder for {spec!r}: use ImageSpec or AudioSpec")


def check_decoded_nbytes(nbytes: int) -> None:
    """Raise if a file would be decoded to more bytes than a leaf has; called before any of them are."""
    if nbytes >= LEAF_NBYTES:
        raise ValueError(f"they would be {nbytes} bytes when they are decoded, and a leaf has less than {LEAF_NBYTES}")


def undeclared_image(path: str, data: bytes) -> ImageSpec:
    """Return how images are read if nobody declares it, by the first: as RGB, or as values that RGB does not hold."""
    try:
        from PIL import Image

        mode = Image.open(io.BytesIO(data)).mode[: len("I;16")]
    except Exception:  # noqa: BLE001 - what is wrong with the file is said when it is stored
        return ImageSpec()
    if mode == "P":
        warn(
            f"leaf {path}: the first image has a palette, so images are read as the numbers of their colours, as masks "
            "are: declare cachelayer.ImageSpec('P') in element_spec=, or ImageSpec('RGB') for the colours"
        )
    return ImageSpec(mode) if mode in _VALUE_MODES else ImageSpec()


def _opened(spec: ImageSpec, data: bytes) -> Image.Image:
    """Return an image whose pixels are not read yet, after the checks of what its header states."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    check_decoded_nbytes(image.width * image.height * _PIXEL_NBYTES)
    if image.format == "EPS":
        raise ValueError("EPS is a program, which Ghostscript would run: convert it")
    most = _most_of_channel(image, data)
    if most > _MOST and image.mode not in _WIDE_MODES:
        raise ValueError(
            f"its colours have {most.bit_length()} bits a channel, of which Pillow reads 8: convert it to 8 bits, or "
            "store its pixels as an array"
        )
    # Pillow names the order of the bytes of 16-bit pixels behind their mode.
    mode = image.mode[: len("I;16")]
    if image.mode in _WIDE_MODES and spec.mode not in _WIDE_MODES:
        raise ValueError(f"its pixels are {mode}, which {spec.mode} would cut off: declare ImageSpec({mode!r})")
    if spec.mode in _VALUE_MODES:
        grey = ("L",) if spec.mode == "P" else ("L", *_WIDE_MODES)
        if image.mode != spec.mode and image.mode not in grey:
            raise ValueError(f"its pixels are {mode}, which are no values of {spec.mode}: declare ImageSpec({mode!r})")
        if (image.mode == "L" or image.format == "PPM") and most not in (0, 255, 65535):
            raise ValueError(f"its values are at most {most}, and Pillow stretches them: store its pixels as an array")
    return image


def _pixels(spec: ImageSpec, image: Image.Image) -> NDArray[Any]:
    """Return the pixels of an opened image."""
    from PIL import ExifTags, ImageOps

    is_turned = spec.upright and image.getexif().get(ExifTags.Base.Orientation, 1) in _TURNED_BY_90_DEGREES
    if isinstance(spec, SizedImageSpec) and image.format in _SCALED_FORMATS and spec.mode not in _UNMIXED_MODES:
        size = spec.size.width, spec.size.height
        # The decoder halves an image as often as it stays larger than the size, which saves most of the work.
        image.draft(None, size[::-1] if is_turned else size)
    image.load()
    if spec.upright and image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        # Cameras store an image as the sensor saw it, and beside it the rotation that makes it upright.
        image = ImageOps.exif_transpose(image)
    # Hues lie on a circle, so the mean of two hues may be far from both: an image is resized before it becomes HSV.
    is_sized = isinstance(spec, SizedImageSpec)
    image = _converted(image, "RGB" if spec.mode == "HSV" and is_sized else spec.mode)
    if isinstance(spec, SizedImageSpec):
        image = _converted(_sized(image, spec.size, is_unmixed=spec.mode in _UNMIXED_MODES), spec.mode)
    return np.asarray(image)


def _converted(image: Image.Image, mode: str) -> Image.Image:
    """Return an image in a mode. Its pixels are those that the image has, if the mode is one of values."""
    from PIL import Image

    if mode in ("1", "L", "LA") and image.mode == "P":
        colours = np.asarray(image.convert("RGB"))
        if (colours != colours[:, :, :1]).any():
            raise ValueError(
                "its pixels are numbers of colours in a palette: declare ImageSpec('P') for the numbers, "
                "ImageSpec('RGB') for the colours"
            )
        image = image.convert("L")
    if mode == "1" and image.mode == "L" and not np.isin(np.asarray(image), (0, 255)).all():
        raise ValueError("its pixels are neither 0 nor 255: declare ImageSpec('L'), or ImageSpec('P') for masks")
    if image.mode == mode or (mode == "P" and image.mode == "L"):
        return image
    if mode not in _VALUE_MODES:
        return image.convert(mode)
    values = np.asarray(image)
    with np.errstate(invalid="ignore"):
        cast = values.astype(IMAGE_MODES[mode][0])
    if not np.array_equal(cast, values):
        raise ValueError(f"it has values of {image.mode} that {mode} does not hold: declare ImageSpec({image.mode!r})")
    return Image.fromarray(cast)


def _most_of_channel(image: Image.Image, data: bytes) -> int:
    """Return the largest value of a channel of a file. Pillow cuts colours of more than 8 bits off without a word."""
    bits = 8
    if image.format == "PPM":
        # Otherwise pixels are as Pillow has them.
        return int(image.tile[0].args[1] if isinstance(image.tile[0].args, tuple) else 0)
    if image.format == "PNG":
        bits = data[24]
    elif image.format == "TIFF":
        bits = int(max(image.tag_v2.get(_TIFF_BITS, (bits,))))
    elif image.format == "SGI":
        bits *= data[3]
    elif image.format == "JPEG2000":
        # The bits of the first channel, less 1, come 42 bytes after the begin of the marker of sizes.
        bits = (data[data.find(b"\xff\x4f\xff\x51") + 42] & 127) + 1
    return (1 << bits) - 1


def _sized(image: Image.Image, size: ImageSize, *, is_unmixed: bool) -> Image.Image:
    """Return the image in a size, its middle if the size crops; if it is unmixed, without new values."""
    from PIL.Image import Resampling

    left = top = 0.0
    if size.crop:
        scale = min(image.width / size.width, image.height / size.height)
        # Rounding may make the middle a little larger than the image.
        left = max(0.0, (image.width - size.width * scale) / 2)
        top = max(0.0, (image.height - size.height * scale) / 2)
    box = (left, top, image.width - left, image.height - top)
    method = Resampling.NEAREST if is_unmixed else Resampling.BILINEAR
    return image.resize((size.width, size.height), method, box=box)


def _decode_samples(spec: AudioSpec, numbers: Ints, data: bytes) -> NDArray[Any]:
    """Return some samples of a sound file, as those of the whole file are decoded."""
    decode = decoder(spec)
    import soundfile

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        if file.format in _SEEKABLE_SOUNDS and spec.sampling_rate in (None, file.samplerate):
            first = int(numbers[0])
            count = int(numbers[-1]) - first + 1
            check_decoded_nbytes(count * file.channels * _SAMPLE_NBYTES)
            file.seek(first)
            samples = file.read(count, dtype="float32", always_2d=True)[numbers - first]
            return np.asarray(samples.mean(axis=1) if spec.channels == 1 else samples, np.float32)
    return decode(data)[numbers]


def _audio_decoder(spec: AudioSpec) -> Callable[[bytes], NDArray[Any]]:
    with packages_of("audio", "sounds need soundfile"):
        import soundfile

    def decode(data: bytes) -> NDArray[Any]:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            stated = file.frames
            rate = file.samplerate
            # No more frames are read than the header states.
            check_decoded_nbytes(stated * file.channels * _SAMPLE_NBYTES)
            if spec.sampling_rate is not None:
                check_decoded_nbytes(stated * spec.sampling_rate // rate * file.channels * _SAMPLE_NBYTES)
            samples = file.read(dtype="float32", always_2d=True)
            reason = why_cut(file, data)
            if not reason and _states_frames(file, data) and len(samples) < stated:
                reason = f"it states {stated} frames, and has {len(samples)}"
            if reason:
                raise ValueError(f"it is cut: {reason}")
        if spec.channels == 1:
            samples = samples.mean(axis=1)
        if spec.sampling_rate is not None and rate != spec.sampling_rate:
            samples = _resampled(samples, rate, spec.sampling_rate)
        return np.asarray(samples, np.float32)

    return decode


# Lines of the log of libsndfile for a file that is shorter than its header states.
_STATED = re.compile(r"^\s*(?:data|SSND|riff|Data Size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_OTHERWISE_CUT = re.compile("does not match value from 'ds64'|Seems to be a truncated file")
# Programs that write into pipes do not know the length: their headers state the largest one, or 0.
_LEAST_UNKNOWN = 0x7FFF_0000
_OGG_HEADER = 27
"""The bytes of the header of a page of OGG, before the counts of bytes of its segments."""
_OGG_ENDS = 4
"""The flag of the last page."""


def why_cut(file: Any, data: bytes) -> str:
    """Return why the end of a sound file must be missing, as its header tells; an empty text if it is not."""
    if file.format == "OGG":
        page = data.rfind(b"OggS")
        counts = data[page + _OGG_HEADER :][: data[page + 26]] if len(data) - page >= _OGG_HEADER else b""
        is_whole = bool(counts) and page + _OGG_HEADER + data[page + 26] + sum(counts) <= len(data)
        return "" if is_whole and data[page + 5] & _OGG_ENDS else "its last page is missing"
    order: Literal["little", "big"] = "little" if data[:4] == b"RIFF" else "big"
    if data[:4] in (b"RIFF", b"FORM") and int.from_bytes(data[4:8], order) + 8 == len(data):
        # To read the log below would take longer than to decode a short sound.
        return ""
    log = file.extra_info
    for stated, there in _STATED.findall(log):
        if int(there) < int(stated) < _LEAST_UNKNOWN:
            return f"it states {stated} bytes, and has {there}"
    return "it has fewer frames than it states" if _OTHERWISE_CUT.search(log) else ""


def _states_frames(file: Any, data: bytes) -> bool:
    """Return whether the file itself states the number of frames that libsndfile gives: else it is an estimate."""
    if file.format != "MP3":
        return bool(file.format == "FLAC")
    tag = 0
    if data[:3] == b"ID3":
        # The size has seven bits in each byte.
        tag = 10 + functools.reduce(lambda size, byte: size << 7 | byte, data[6:10], 0)
    first = data[tag : tag + 256]
    return b"Xing" in first or b"Info" in first


def _resampled(samples: NDArray[Any], rate: int, wanted: int) -> NDArray[Any]:
    with packages_of("audio", f"resampling a sound from {rate} to {wanted} Hz needs soxr"):
        import soxr
    try:
        resampled: NDArray[Any] = soxr.resample(samples, rate, wanted)
    except MemoryError as error:
        raise ValueError(f"it cannot be resampled from {rate} to {wanted} Hz") from error
    return resampled
