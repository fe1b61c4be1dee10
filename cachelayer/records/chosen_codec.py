"""A codec that decodes only some leaves of records, for elements that have only these."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cachelayer.errors import InvalidTypeError
from cachelayer.records.codec import Codec, TreeCodec
from cachelayer.records.column import Column
from cachelayer.records.leaf_names import chosen_spec
from cachelayer.records.record_buffers import Frames, Records


class ChosenCodec(TreeCodec):
    """Decodes some leaves of the records of another codec. Nothing else of the records is touched.

    Args:
        codec: the codec of the records.
        chosen: the numbers of the leaves, ascending.
    """

    def __init__(self, codec: Codec, chosen: Sequence[int]) -> None:
        super().__init__(chosen_spec(codec.spec, chosen))
        # No manifest names it: its records are those of the other codec.
        self.name = f"some leaves of {codec.name}"
        self._codec = codec
        self._chosen = tuple(chosen)

    def encode(self, columns: Sequence[Column], rows: int) -> Frames:  # noqa: ARG002
        raise InvalidTypeError("records cannot be made of some of their leaves")

    def decode(
        self, records: Records, chosen: Collection[int] | None = None, *, apart: bool = False
    ) -> list[Column | None]:
        wanted = self._chosen if chosen is None else [self._chosen[leaf] for leaf in chosen]
        columns = self._codec.decode(records, frozenset(wanted), apart=apart)
        return [columns[leaf] for leaf in self._chosen]
