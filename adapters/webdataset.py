"""Read WebDataset tar files as a source: files with the same name are one sample, and each suffix is a leaf."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import IO, Any

import numpy as np

from cachelayer.adapters.npy import read_array
from cachelayer.adapters.sources.files import Files, Options, Paths, listed
from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.source_identity import FileFacts
from cachelayer.errors import (
    CacheLayerError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
)
from cachelayer.locks import cached_property
from cachelayer.records import tree
from cachelayer.records.infer import from_elements
from cachelayer.records.spec import ArraySpec, AudioSpec, ImageSpec, LeafSpec
from cachelayer.records.tree import Tree

try:
    from webdataset.shardlists import expand_urls
    from webdataset.tariterators import group_by_keys
except ImportError as error:
    raise MissingDependencyError("this needs webdataset: pip install 'cachelayer[webdataset]'") from error

KEY = "__key__"
_LOOK_AHEAD = 1000
_SHOWN = 80
_CHUNK = 1 << 20
# Names that webdataset reserves.
_META = re.compile(r"__[^/]*__($|/)")
_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
_SPECS: dict[str, LeafSpec] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "webp", "bmp", "gif", "tif", "tiff"), ImageSpec()),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg"), AudioSpec()),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), ArraySpec(np.dtype(np.int64))),
    **dict.fromkeys(("txt", "text", "transcript"), ArraySpec(str)),
}


def from_webdataset(
    urls: Paths, suffixes: Sequence[str] | None = None, *, storage_options: Options = None
) -> WebDatasetSource:
    """Return a source of the samples of tar files: dicts of ``__key__`` and each suffix, in the order of the files.

    Images and sounds stay the bytes of their files; reading decodes them. ``cls``, ``cls2``, ``index``, ``inx`` and
    ``id`` are int64; ``txt``, ``text`` and ``transcript`` are str; ``npy`` is an array; any other suffix is bytes.

    Args:
        urls: paths or URLs, with braces (``"train-{000..146}.tar"``) or patterns (``"train-*.tar"``).
        suffixes: the suffixes to read, by default those of the first sample. A suffix that a sample lacks is None.
        storage_options: options of fsspec's client.
    """
    return WebDatasetSource(urls, suffixes, storage_options)


class WebDatasetSource:
    """The samples of tar files; see :func:`from_webdataset`."""

    kind = "webdataset"
    length: int | None = None

    def __init__(
        self,
        urls: Paths,
        suffixes: Sequence[str] | None,
        storage_options: Options,
        declared: Tree | None = None,
    ) -> None:
        self._urls = listed(urls)
        self.is_local = Files(self._urls).is_local
        self._suffixes = None if suffixes is None else _checked(suffixes)
        self._storage_options = storage_options
        self._declared = declared

    def with_element_spec(self, spec: Tree) -> WebDatasetSource:
        """Return this source with an element spec that a user declares. Suffixes declared as bytes are not decoded.

        Raises:
            InvalidArgumentError: if the spec is not a dict of ``__key__`` and suffixes.
        """
        if not isinstance(spec, dict) or not all(isinstance(leaf, LeafSpec) for leaf in spec.values()):
            raise InvalidArgumentError("element_spec of tar files must be a dict with a leaf for each suffix")
        if spec.get(KEY) != ArraySpec(str):
            raise InvalidArgumentError(f"element_spec must have {KEY!r}: ArraySpec(str)")
        return WebDatasetSource(self._urls, [name for name in spec if name != KEY], self._storage_options, spec)

    def file_facts(self) -> list[FileFacts]:
        """Return the current size and modification time of each file."""
        return self._files.facts()

    @cached_property
    def _files(self) -> Files:
        urls = [self._urls] if not isinstance(self._urls, Iterable) or isinstance(self._urls, str) else self._urls
        expanded = [one for url in urls for one in (expand_urls(url) if isinstance(url, str) else [url])]
        return Files(expanded, self._storage_options)

    @cached_property
    def _names(self) -> list[str]:
        if self._suffixes is not None:
            return [KEY, *self._suffixes]
        first = next(self._samples(), {KEY: ""})
        return [name for name in first if name == KEY or not name.startswith("__")]

    @cached_property
    def element_spec(self) -> Tree:
        """The declared spec, or the one that the suffixes imply, in which arrays have the shape of the first sample.

        Raises:
            ElementError: if a suffix does not imply a spec, and the first thousand samples lack it.
        """
        if self._declared is not None:
            return self._declared
        spec: dict[str, LeafSpec | None] = {name: _SPECS.get(_kind(name)) for name in self._names}
        spec[KEY] = ArraySpec(str)
        if None in spec.values():
            inferred = from_elements(islice(self._elements(spec), _LOOK_AHEAD))
            spec = {name: leaf or inferred[name] for name, leaf in spec.items()}
        return spec

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the samples, in batches.

        Raises:
            SourceError: if a file cannot be read; names it and the record.
            ElementError: if a sample has a suffix that the first one does not have.
        """
        yield from IterableSource(self._elements(self.element_spec), self.kind, None).batches(limit)

    def _elements(self, spec: Mapping[str, LeafSpec | None]) -> Iterator[dict[str, Any]]:
        for record, sample in enumerate(self._samples()):
            extra = [name for name in sample if name not in spec and not name.startswith("__")]
            if extra and self._suffixes is None:
                hint = f"{sample[KEY]!r} has {extra[0]!r} too: pass suffixes= with all suffixes to read."
                raise ElementError(f"the suffixes {self._names[1:]}", f"{list(sample)[2:]}", record=record, hint=hint)
            try:
                yield {name: _value(name, leaf, sample.get(name)) for name, leaf in spec.items()}
            except ElementError as error:
                hint = f"It is in sample {sample[KEY]!r} of {sample['__url__']}: element_spec= may say bytes or str."
                raise ElementError(error.expected, error.got, path=error.path, record=record, hint=hint) from error

    def _samples(self) -> Iterator[dict[str, Any]]:
        record = 0
        for file in self._files.find():
            try:
                with file.open() as opened:
                    for sample in group_by_keys(_members(opened, file.name)):
                        yield sample
                        record += 1
            except Exception as error:
                # webdataset adds more arguments to the errors that it raises.
                reason = error.args[0] if error.args else ""
                if not isinstance(error, CacheLayerError):
                    reason = f"{type(error).__name__}: {reason}"
                raise SourceError(f"{file.name} failed at record {record} or the next: {reason}") from error


def _members(file: IO[bytes], url: str) -> Iterator[dict[str, Any]]:
    """Yield the files of an archive in webdataset's form, without those that it reserves."""
    start = file.read(len(max(_OPENERS, key=len)))
    file.seek(0)
    opened = next((opener(file) for magic, opener in _OPENERS.items() if start.startswith(magic)), file)
    with tarfile.open(fileobj=opened, mode="r:") as tar:
        for member in tar:
            if member.isreg() and not _META.match(member.name):
                data: Any = tar.extractfile(member)
                yield {"fname": member.name, "data": data.read(), "__url__": url}
            elif not member.isreg() and not member.isdir():
                raise SourceError(f"{member.name} is a link or no file: pack it with tar --dereference")
    # tarfile takes a damaged header, and a cut between two files, as the end.
    opened.seek(tar.offset)
    if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise SourceError(f"it is damaged or cut short at byte {tar.offset}: make it again")
    if any(data.strip(b"\0") for data in iter(lambda: opened.read(_CHUNK), b"")):
        raise SourceError("bytes follow its end mark: split it into two files")
    # The end of an archive ends a sample.
    yield {}


def _checked(suffixes: Any) -> list[str]:
    """Return suffixes as a list; raise if samples cannot have them."""
    names = [suffixes] if isinstance(suffixes, str) else list(suffixes)
    if isinstance(suffixes, str) or not all(isinstance(suffix, str) for suffix in names):
        raise InvalidTypeError(f"suffixes {suffixes!r}: pass a list of str, such as ['jpg', 'cls']")
    for suffix in names:
        if suffix.startswith(".") or suffix != suffix.lower():
            raise InvalidArgumentError(f"suffix {suffix!r}: write {suffix.lstrip('.').lower()!r}, as in samples")
    return names


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _value(name: str, leaf: LeafSpec | None, data: Any) -> Any:
    if data is None or name == KEY or (leaf is not None and leaf.dtype is bytes):
        return data
    try:
        if _kind(name) == "npy":
            return read_array(io.BytesIO(data))
        if leaf is None:
            return data
        return data.decode() if leaf.dtype is str else _number(data.decode().strip(), np.dtype(leaf.dtype))
    except (ValueError, OverflowError) as error:
        expected = "a numpy array" if leaf is None else leaf.describe()
        got = repr(data) if len(data) < _SHOWN else tree.describe(data)
        raise ElementError(expected, got, path=f"[{name!r}]") from error


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    """Return the number that a text stands for."""
    if dtype.kind not in "iuf":
        raise ValueError(f"a text is not read as {dtype}")
    with np.errstate(over="ignore"):
        number = dtype.type(text)
    if dtype.kind == "f":
        is_same = bool(np.isfinite(number)) and not (text.lstrip("-").isdigit() and int(number) != int(text))
    else:
        is_same = str(number) == text
    if not is_same:
        raise ValueError(f"{text!r} would be changed")
    return number
