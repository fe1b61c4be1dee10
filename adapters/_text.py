"""Read text files without declared types: the first block decides the types, and no later value changes to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from cachelayer.adapters._arrow_source import ArrowPart
from cachelayer.adapters._files import File, Files, find, reading
from cachelayer.errors import ElementError, SourceError

_COMPRESSED = {
    b"\x1f\x8b": ".gz",
    **{b"BZh%d1AY&SY" % level: ".bz2" for level in range(1, 10)},
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\xfd7zXZ\0": ".xz",
    b"PK\3\4": ".zip",
}
"""The first bytes of compressed files, with the suffix that their names should have."""
_NOT_READ = (".xz", ".zip")
_NOT_READ_NAMES = (".br", ".brotli", ".lzma", ".lz", ".lzo", ".7z", ".sz", ".snappy", ".z")
"""How names of compressed files end that begin with nothing of their own, or are not read."""


class TextFormat(Protocol):
    """A format of text, read block by block.

    Args:
        declared: the types, if the user declares all of them.
    """

    declared: pa.Schema | None

    def blocks(self, file: File) -> tuple[list[str] | None, Iterable[Any]]:
        """Return the column names, if the file has them, and its blocks."""

    def schema(self, block: Any) -> pa.Schema:
        """Return the types inferred from a block; errors count records from the start of the block."""

    def convert(self, block: Any, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows of a block; errors count records from the start of the block."""


def parts_of_text(files: Files, form: TextFormat) -> Callable[[], Iterator[ArrowPart]]:
    """Return a function that yields the files as parts; the first block with rows decides the types of all of them."""

    @cache
    def schema() -> pa.Schema:
        names: list[str] = []
        for file in find(files.paths, files.storage_options):
            own, blocks = _opened(form, file)
            names = names or own or []
            with reading(file.name, "does not parse"), _numbered(file, 0):
                first = next((block for block in blocks if len(block)), None)
                if first is not None:
                    return form.schema(first)
        return form.declared or pa.schema([(name, pa.string()) for name in names])

    def parts() -> Iterator[ArrowPart]:
        done = 0

        def converted(file: File, blocks: Iterable[Any]) -> Iterator[pa.RecordBatch]:
            nonlocal done
            for block in blocks:
                with _numbered(file, done):
                    batch = form.convert(block, schema())
                yield batch
                done += len(batch)

        for file in find(files.paths, files.storage_options):
            names, blocks = _opened(form, file)
            own = schema() if names in (None, schema().names) else pa.schema([(name, pa.string()) for name in names])

            def batches(_: int, file: File = file, blocks: Iterable[Any] = blocks) -> Iterator[pa.RecordBatch]:
                return converted(file, blocks)

            yield ArrowPart(file.name, own, None, batches)

    return parts


def stream_of(file: File) -> Any:
    """Return the bytes of a file as a pyarrow stream, decompressed if its name ends in ``.gz``, ``.bz2`` or the like.

    Raises:
        SourceError: if the name shows a compression that is not read; if the file is compressed but its name does not
            show it; or if it is empty although its name shows a compression.
    """
    ending = next((ending for ending in _NOT_READ_NAMES if file.path.lower().endswith(ending)), None)
    if ending is not None:
        raise SourceError(
            f"{file.name} is compressed, as its name says, and {ending} files are not read: decompress it, or compress "
            "it as .gz or .zst"
        )
    raw = pa.OSFile(file.path) if file.is_local else pa.PythonFile(file.open(), mode="r")
    start = raw.read(max(map(len, _COMPRESSED)))
    raw.seek(0)
    try:
        codec = pa.Codec.detect(file.path.lower())
    except (TypeError, ValueError):
        how = next((suffix for magic, suffix in _COMPRESSED.items() if start.startswith(magic)), None)
        if how is None:
            return raw
        fix = "decompress it" if how in _NOT_READ else f"let its name end in {how}"
        raise SourceError(f"{file.name} is compressed like a {how} file: {fix}") from None
    if not start:
        raise SourceError(f"{file.name} is cut short: it has no bytes, but a compressed file always has some")
    return pa.CompressedInputStream(raw, codec.name)


def _opened(form: TextFormat, file: File) -> tuple[list[str] | None, Iterable[Any]]:
    with reading(file.name, "does not parse"):
        return form.blocks(file)


@contextmanager
def _numbered(file: File, first: int) -> Iterator[None]:
    """Let errors within the block count records from the start of the source, and name the file.

    Raises:
        ElementError: from an ElementError that counts from the start of a block; ``first`` is its first record.
        SourceError: from an error of pyarrow.
    """
    try:
        yield
    except ElementError as error:
        record, hint = first + (error.record or 0), f"{error.hint} It is in {file.name}.".strip()
        raise ElementError(error.expected, error.got, path=error.path, record=record, hint=hint) from error.__cause__
    except pa.ArrowException as error:
        raise SourceError(f"{file.name} failed at record {first} or later: {type(error).__name__}: {error}") from error
