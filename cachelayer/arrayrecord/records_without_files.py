"""Records in an object store whose large files stay there until they are used, and whose other bytes are checked.

The checksum of a record covers its files too. Each file has a checksum of its own in the record. From these checksums
and the fetched bytes follows what the checksum of the record must be::

    | head | file | pad | file | pad | tail |

CRC32C(head + file) is a function of CRC32C(head), CRC32C(file) and the number of bytes of the file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import google_crc32c
import numpy as np

from cachelayer.errors import CorruptionError
from cachelayer.records.files_in_records import Fetch, PartialRecords
from cachelayer.records.spans import NameOfRow, Records, Spans
from cachelayer.support.memory import Ints

HEAD_NBYTES = 1 << 16
"""How much of each record is fetched at first: the index of a video of a minute or two."""
_POLYNOMIAL = 0x82F63B78
_BITS = 32
_X_TO_THE_8 = 1 << (_BITS - 1 - 8)
"""A polynomial whose bit 31 is its coefficient of x to the power 0."""
FindFiles = Callable[[Records], Sequence[tuple[Ints, Ints, Ints]]]
"""Finds the files in records, one after another: where each begins in its record, its bytes, and its CRC32C."""


def records_without_files(
    lengths: Ints, name: NameOfRow, fetch: Fetch, files_of: FindFiles, least: int, checksums: Ints
) -> tuple[PartialRecords, frozenset[int]]:
    """Fetch records without their files; return them, and the rows of those that do not match their checksums.

    ``files_of`` finds the files in a record from its ``least`` first bytes.
    """
    rows = np.arange(len(lengths))
    zeros = np.zeros(len(lengths), np.int64)
    sizes = np.minimum(lengths, max(HEAD_NBYTES, least))
    heads = fetch(rows, zeros, sizes)
    nothing = Spans.of_bytes([b""] * len(lengths))
    records = PartialRecords(lengths, name, heads, nothing, fetch)
    try:
        files = files_of(records)
    except CorruptionError:
        return records, frozenset(rows.tolist())
    begins = files[0][0]
    ends = files[-1][0] + (files[-1][1] + 7 & ~7)
    if (sizes < begins).any():
        heads = fetch(rows, zeros, np.maximum(sizes, begins))
    tails = fetch(rows, ends, lengths - ends) if (lengths > ends).any() else nothing
    records = PartialRecords(lengths, name, heads, tails, fetch)
    wrong = _checksums(heads, tails, files) != checksums
    return records, frozenset(np.flatnonzero(wrong).tolist())


def _checksums(heads: Spans, tails: Spans, files: Sequence[tuple[Ints, Ints, Ints]]) -> Ints:
    """Return the CRC32C of whole records from their heads and tails, and the checksums of their files."""
    heads = heads.packed()
    memory = heads.memory()
    ends = heads.starts + files[0][0]
    bounds = zip(heads.starts.tolist(), ends.tolist(), strict=True)
    so_far = np.array([google_crc32c.value(bytes(memory[start:end])) for start, end in bounds], np.int64)
    for _, nbytes, checksums in files:
        pads = [bytes(pad) for pad in (-nbytes & 7).tolist()]
        so_far = _extended(joined_checksums(so_far, checksums, nbytes), pads)
    return _extended(so_far, tails.packed().to_list())


def _extended(checksums: Ints, bodies: Sequence[bytes]) -> Ints:
    """Return what each checksum becomes when a few bytes follow."""
    pairs = zip(checksums.tolist(), bodies, strict=True)
    return np.array([google_crc32c.extend(checksum, body) for checksum, body in pairs], np.int64)


def joined_checksums(firsts: Ints, seconds: Ints, nbytes: Ints) -> Ints:
    """Return the CRC32C of two byte strings, one after the other; the second has so many bytes."""
    shifted = firsts.copy()
    for bit in range(int(nbytes.max(initial=0)).bit_length()):
        table = _shift_table(bit)
        rows = np.flatnonzero(nbytes >> bit & 1)
        values = shifted[rows]
        shifted[rows] = np.bitwise_xor.reduce([table[byte, values >> 8 * byte & 255] for byte in range(4)])
    return shifted ^ seconds


@cache
def _shift_table(bit: int) -> Ints:
    """Return what each byte of a checksum becomes when 2 ** bit bytes follow: int64 of shape ``[4, 256]``."""
    power = _X_TO_THE_8
    for _ in range(bit):
        power = int(_product(power, np.array([power]))[0])
    return np.stack([_product(power, np.arange(256) << 8 * byte) for byte in range(4)])


def _product(one: int, others: Ints) -> Ints:
    """Return the products of polynomials over the field of two elements, as remainders of the polynomial of CRC32C."""
    product = np.zeros(len(others), np.int64)
    for bit in range(_BITS - 1, -1, -1):
        if one >> bit & 1:
            product ^= others
        others = np.where(others & 1, others >> 1 ^ _POLYNOMIAL, others >> 1)
    return product
