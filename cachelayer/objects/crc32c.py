"""Combine the CRC32Cs of parts into that of the whole."""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31


def joined(first: int, second: int, nbytes: int) -> int:
    """Return the CRC32C of two runs of bytes, one behind the other.

    Checksums are polynomials over GF(2), whose lowest bit is the highest power: zeros behind the first run multiply it
    by a power of x (``crc32_combine`` of zlib, by Mark Adler).

    Args:
        first, second: the CRC32C of each.
        nbytes: length of the second.
    """
    power, number = _ONE, 8 * nbytes
    bit = 0
    while number >> bit:
        if number >> bit & 1:
            power = _product(power, _x_to_the_power_of_two(bit))
        bit += 1
    return _product(power, first) ^ second


@cache
def _x_to_the_power_of_two(exponent: int) -> int:
    if exponent == 0:
        return _ONE >> 1
    root = _x_to_the_power_of_two(exponent - 1)
    return _product(root, root)


def _product(left: int, right: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            product ^= right
        right = right >> 1 ^ (_POLYNOMIAL if right & 1 else 0)
    return product
