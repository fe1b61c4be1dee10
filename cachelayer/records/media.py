"""Decode images and sounds, which records store as the bytes of their files, when they are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, ElementError
from cachelayer.records import tree
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.column import Column
from cachelayer.records.conform import conform
from cachelayer.records.decoders import decoder
from cachelayer.records.leaf_codecs import StaticLeaf, leaf_codec
from cachelayer.records.record_buffers import RecordBuffer, Records
from cachelayer.records.spec import EncodedSpec
from cachelayer.records.threads import each
from cachelayer.records.tree import Tree

Undecoded = dict[int, ElementError]
"""The error of each row with a file that does not decode."""


def decoded_spec(spec: Tree) -> Tree:
    """Return the spec of elements as readers get them."""
    return tree.map_structure(spec, lambda _, leaf: leaf.decoded if isinstance(leaf, EncodedSpec) else leaf)


def decoding(codec: Codec) -> Codec:
    """Return a codec that also decodes encoded leaves; the codec itself if there are none."""
    encoded = any(isinstance(leaf, EncodedSpec) for _, leaf in tree.leaves(codec.spec))
    return DecodingCodec(codec) if encoded else codec


class DecodingCodec:
    """Wraps a codec; its elements and batches have their encoded leaves decoded.

    If a file does not decode, the record of the error is its index among the records.

    Args:
        codec: the codec of the records.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        decoded = codec_for(decoded_spec(codec.spec))
        self._leaves = tree.leaves(codec.spec)
        self.name = codec.name
        self.spec = decoded.spec
        self.columns = codec.columns
        self.batch_columns = codec.batch_columns
        self.encode = codec.encode
        self.elements = decoded.elements
        self.batch = decoded.batch
        self.batches = decoded.batches

    def decode(
        self,
        records: Records,
        chosen: Collection[int] | None = None,
        *,
        apart: bool = False,
        failed: Undecoded | None = None,
    ) -> list[Column | None]:
        """Return the columns of records, decoded, with None for each leaf that is not in ``chosen``.

        Args:
            records, chosen, apart: as for other codecs.
            failed: gets the error of each row with a file that does not decode, and the row a filler; None to raise it.
        """
        columns = self._codec.decode(records, chosen, apart=apart)
        return [
            _MediaFiles(path, leaf, column, failed).decode(apart=apart)
            if isinstance(leaf, EncodedSpec) and column is not None
            else column
            for (path, leaf), column in zip(self._leaves, columns, strict=True)
        ]

    def element(self, record: bytearray) -> Any:
        return self.elements(self.decode(RecordBuffer.of([bytes(record)]), apart=True), 1)[0]


def check_files(spec: Tree, columns: Sequence[Column]) -> None:
    """Raise unless every image and sound in the columns decodes."""
    for (path, leaf), column in zip(tree.leaves(spec), columns, strict=True):
        if isinstance(leaf, EncodedSpec):
            files = _MediaFiles(path, leaf, column)
            each(len(files), files.check)


class _MediaFiles:
    """A column of files. Threads may decode them.

    Args:
        path, spec: the leaf.
        column: the files.
        failed: gets the error of each file that does not decode; None to raise it.
    """

    def __init__(self, path: str, spec: EncodedSpec, column: Column, failed: Undecoded | None = None) -> None:
        self._path, self._spec, self._decoded = path, spec, spec.decoded
        self._decode = decoder(spec)
        self._flat, self._nulls, self._failed = column.variable[0], column.nulls, failed

    def __len__(self) -> int:
        return len(self._flat.splits) - 1

    def decode(self, *, apart: bool) -> Column:
        """Return the column of decoded files; of those that fail, fillers.

        Args:
            apart: see :meth:`DecodingCodec.decode`.
        """
        leaf, rows = leaf_codec(self._decoded), list[Any]([None]) * len(self)
        if isinstance(leaf, StaticLeaf) and not apart:
            stacked = leaf.empty(len(self))

            def stack(row: int) -> None:
                value = self._value(row)
                stacked[row] = leaf.filler() if value is None else value

            each(len(self), stack)
            return Column((stacked,), (), self._nulls)

        def collect(row: int) -> None:
            value = self._value(row)
            value = leaf.filler() if value is None else value
            # Those who get elements may change them.
            rows[row] = value.copy() if apart and not value.flags.writeable else value

        each(len(self), collect)
        if apart:
            return Column(nulls=self._nulls, listed=rows)
        decoded = leaf.from_rows(rows)
        return Column(decoded.fixed, decoded.variable, self._nulls)

    def check(self, row: int) -> None:
        """Raise if a file does not decode."""
        self._value(row)

    def _value(self, row: int) -> NDArray[Any] | None:
        """Return what a file holds; None if there is no file, or it fails and its error is kept."""
        if self._nulls is not None and self._nulls[row]:
            return None
        data = self._flat.row(row).tobytes()
        try:
            value: NDArray[Any] = conform(self._decoded, self._decode(data), row)
        except ElementError as error:
            undecoded, cause = error.at(path=self._path), error.__cause__
        except (CacheLayerError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - raised below
            undecoded, cause = self._undecoded(row, len(data), error), error
        else:
            return value
        try:
            if self._failed is None:
                raise undecoded from cause
            undecoded.__cause__ = cause
            self._failed.setdefault(row, undecoded)
            return None
        finally:
            # The tracebacks of errors hold this frame.
            del undecoded, cause

    def _undecoded(self, row: int, nbytes: int, error: Exception) -> ElementError:
        return ElementError(
            self._spec.describe(),
            f"{nbytes} bytes that do not decode: {type(error).__name__}: {error}",
            path=self._path,
            record=row,
            hint="ref.raw() gives the bytes.",
        )
