"""Read WebDataset tar files as a source: files with the same name are one sample, and each suffix is a leaf."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import IO, Any

import numpy as np

from cachelayer.adapters.npy import read_array
from cachelayer.adapters.sources.files import File, Files, Options, Paths, file_source, source_of_places
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileSource
from cachelayer.errors import CacheLayerError, InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.records.infer import infer_spec
from cachelayer.records.media import undeclared_image
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, AudioSpec, ImageSpec, LeafSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import BadValue
from cachelayer.support.arguments import explains_options
from cachelayer.support.credentials_in_urls import as_cause, without_credentials_in
from cachelayer.support.extras import packages_of

with packages_of("webdataset", "this needs webdataset"):
    from webdataset.shardlists import expand_urls
    from webdataset.tariterators import group_by_keys

__all__ = ["from_webdataset"]

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


@explains_options
def from_webdataset(
    paths: Paths, suffixes: Sequence[str] | None = None, *, storage_options: Options = None
) -> FileSource:
    """Return a source of the samples of tar files: dicts of ``__key__`` and each suffix, in the order of the files.

    Images and sounds stay the bytes of their files; reading decodes them. ``cls``, ``cls2``, ``index``, ``inx`` and
    ``id`` are int64; ``txt``, ``text`` and ``transcript`` are str; ``npy`` is an array; any other suffix is bytes.
    ``element_spec=``, a dict of ``__key__`` and suffixes, may declare others: those declared as bytes are not decoded.

    Args:
        paths: paths or URLs, with braces (``"train-{000..146}.tar"``) or patterns (``"train-*.tar"``).
        suffixes: the suffixes to read, by default those of the first sample. A suffix that a sample lacks is None.
        storage_options: options of fsspec's client.

    Examples:
        >>> import io
        >>> import tarfile
        >>> from cachelayer.adapters.webdataset import from_webdataset
        >>> with tarfile.open(folder / "samples.tar", "w") as tar:
        ...     for name, data in [("7.cls", b"3"), ("7.txt", b"seven")]:
        ...         member = tarfile.TarInfo(name)
        ...         member.size = len(data)
        ...         tar.addfile(member, io.BytesIO(data))
        >>> ref = cachelayer.Storage(folder / "cache").cache(from_webdataset(folder / "samples.tar"), "samples@v1")
        >>> ref[0]
        {'__key__': '7', 'cls': np.int64(3), 'txt': 'seven'}
    """
    names = Files(paths, storage_options).paths
    expanded = [one for path in names for one in (expand_urls(path) if isinstance(path, str) else [path])]
    files = Files(expanded, storage_options)
    chosen = None if suffixes is None else _checked(suffixes)
    return file_source(files, partial(_source, chosen), {"suffixes": chosen})


def _source(suffixes: list[str] | None, files: Sequence[File], declared: Tree | None) -> Source:
    if declared is None:
        spec: Any = _spec(files, suffixes)
    elif not isinstance(declared, dict) or not all(isinstance(leaf, LeafSpec) for leaf in declared.values()):
        raise InvalidArgumentError("element_spec of tar files must be a dict with a leaf for each suffix")
    elif declared.get(KEY) != ArraySpec(str):
        raise InvalidArgumentError(f"element_spec must have {KEY!r}: ArraySpec(str)")
    else:
        spec = declared
    elements = partial(_elements, spec=spec, takes_all=suffixes is None and declared is None)
    return source_of_places("webdataset", "sample", files, elements, spec)


def _spec(files: Sequence[File], suffixes: list[str] | None) -> dict[str, LeafSpec | None]:
    """Return the spec that the suffixes imply, in which arrays have the shape of the first sample."""
    sample = next(chain.from_iterable(map(_samples, files)), {})
    names = sample if suffixes is None else suffixes
    spec: dict[str, LeafSpec | None] = {KEY: ArraySpec(str)}
    spec |= {name: _SPECS.get(_kind(name)) for name in names if not name.startswith("__")}
    for name, leaf in spec.items():
        if isinstance(leaf, ImageSpec) and name in sample:
            spec[name] = undeclared_image(f"[{name!r}]", sample[name])
    if None in spec.values():
        samples = islice(chain.from_iterable(map(_samples, files)), _LOOK_AHEAD)
        values = ({name: _value(name, leaf, sample.get(name)) for name, leaf in spec.items()} for sample in samples)
        first = (
            {name: None if isinstance(value, BadValue) else value for name, value in row.items()} for row in values
        )
        inferred: Any = infer_spec(first, {name: leaf for name, leaf in spec.items() if leaf is not None})
        spec = {name: inferred[name] for name in spec}
    return spec


def _elements(file: File, spec: Mapping[str, LeafSpec | None], *, takes_all: bool) -> Iterator[tuple[str, Any]]:
    for sample in _samples(file):
        key = sample[KEY]
        extra = [name for name in sample if name not in spec and not name.startswith("__")]
        if extra and takes_all:
            yield key, BadValue(f"{key!r} has {extra[0]!r} too: pass suffixes= with all suffixes to read")
        else:
            yield key, {name: _value(name, leaf, sample.get(name)) for name, leaf in spec.items()}


def _samples(file: File) -> Iterator[dict[str, Any]]:
    record = 0
    try:
        with file.open() as opened:
            keys: set[str] = set()
            for sample in group_by_keys(_members(opened, file.name)):
                if sample[KEY] in keys:
                    raise SourceError(
                        f"the files of sample {sample[KEY]!r} do not follow each other, as those of a sample must: "
                        "pack them in the order of their names (tar --sort=name)"
                    )
                keys.add(sample[KEY])
                yield sample
                record += 1
    except Exception as error:  # noqa: BLE001
        # webdataset adds more arguments to the errors that it raises.
        reason = error.args[0] if error.args else ""
        if not isinstance(error, CacheLayerError):
            reason = without_credentials_in(f"{type(error).__name__}: {reason}")
        raise SourceError(f"{file.name} failed at record {record} or the next: {reason}") from as_cause(error)


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
    """Return the value of a file of a sample; one that cannot be read is refused with its record."""
    if data is None or name == KEY or (leaf is not None and leaf.dtype is bytes):
        return data
    try:
        if _kind(name) == "npy":
            return read_array(io.BytesIO(data))
        if leaf is None:
            return data
        return data.decode() if leaf.dtype is str else _number(data.decode().strip(), np.dtype(leaf.dtype))
    except (ValueError, OverflowError):
        got = repr(data) if len(data) < _SHOWN else tree.describe(data)
        return BadValue(f"{got} (element_spec= may say bytes or str)")


def _number(text: str, dtype: np.dtype[Any]) -> Any:
    """Return the number that a text stands for; integers are written as Python writes them."""
    if dtype.kind not in "iuf":
        raise ValueError(f"a text is not read as {dtype}")
    with np.errstate(over="ignore"):
        number = dtype.type(text)
    is_kept = bool(np.isfinite(number)) if dtype.kind == "f" else str(number) == text
    if not is_kept:
        raise ValueError(f"{text!r} would be changed")
    return number
