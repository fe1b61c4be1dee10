"""Permutations of any number of records, of which any place is computed without the others: the arithmetic of orders.

All of it is in uint64, modulo 2**64; docs/order.md specifies it with golden vectors.

* ``mix`` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014, with
  the constants of Stafford's variant 13): a bijection of 64-bit words.
* The keys of (seed, epoch) come from a Feistel network over the pair, which is a bijection: no two pairs share them.
* Up to 65,536 records: the record numbers are sorted by a keyed hash.
* Above: an 8-round Feistel network over the next power of two, applied again until the result is below n (Black,
  Rogaway: Ciphers with arbitrary finite domains, 2002).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]

SORTED_UP_TO = 1 << 16
"""Up to so many records, a permutation is sorted as a whole and kept."""
MASK = (1 << 64) - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
# numpy handles arrays without dimensions twice as fast as scalars.
_M1_WORD, _M2_WORD, _HALF_WORD = (np.array(word, np.uint64) for word in (_M1, _M2, 32))
_KEY_ROUNDS = 6
_ROUNDS = 8
_KEPT = 128
"""The number of sorted permutations that are kept, of 512 KiB at most."""
_AT_ONCE = 1 << 11
"""Words that are hashed at once: the first cache of a processor holds them and a copy of them."""
_INDEX = np.uint64(SORTED_UP_TO - 1)


def permuted_at(records: int, seed: int, epoch: int, places: Indices) -> Indices:
    """Return the numbers at places of the permutation of ``records`` numbers keyed by (seed, epoch)."""
    if records <= SORTED_UP_TO:
        return _sorted_permutation(records, seed, epoch)[places]
    return _walk(records, round_keys(seed, epoch), places.astype(np.uint64), inverse=False)


def places_of(records: int, seed: int, epoch: int, numbers: Indices) -> Indices:
    """Return the places of numbers in the permutation: the inverse of :func:`permuted_at`."""
    if records <= SORTED_UP_TO:
        return _sorted_places(records, seed, epoch)[numbers]
    return _walk(records, round_keys(seed, epoch), numbers.astype(np.uint64), inverse=True)


def permuted(records: int, seed: int, epoch: int, start: int, stop: int) -> Indices:
    """Return the numbers at the places from ``start`` to ``stop``; see :func:`permuted_at`."""
    return permuted_at(records, seed, epoch, np.arange(start, stop))


def mix(word: int) -> int:
    """Return the hash of a 64-bit word: a bijection that leaves no structure."""
    word = (word ^ (word >> 30)) * _M1 & MASK
    word = (word ^ (word >> 27)) * _M2 & MASK
    return word ^ (word >> 31)


@lru_cache(maxsize=256)
def round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """Return eight 64-bit keys; the first two determine seed and epoch, so that no two pairs share them."""
    left = seed & MASK
    right = epoch & MASK
    keys = []
    for number in range(_KEY_ROUNDS + _ROUNDS):
        left, right = right, left ^ mix((right + (number + 1) * GOLDEN_RATIO) & MASK)
        if number >= _KEY_ROUNDS:
            keys.append(right)
    return tuple(keys)


def hash_words(words: Words, first: int, second: int) -> Words:
    """Replace words by their hashes ``mix(mix(word + first) ^ second)``, and return them."""
    flat = words.reshape(-1)
    for start in range(0, len(flat), _AT_ONCE):
        piece = flat[start : start + _AT_ONCE]
        shifted = np.empty_like(piece)
        piece += np.uint64(first)
        _mix_words(piece, shifted)
        piece ^= np.uint64(second)
        _mix_words(piece, shifted)
    return words


def _mix_words(words: Words, shifted: Words) -> None:
    """Replace words by :func:`mix` of them; ``shifted`` is memory of the same shape to compute in."""
    for shift, factor in ((30, _M1), (27, _M2)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted


def sort_by_hash(hashes: Words) -> Words:
    """Replace the words of each row by their indices, sorted by the upper 48 bits of the words, then by themselves.

    To sort words is several times faster than to sort indices by words: the index stands in the lower bits.
    """
    hashes &= ~_INDEX
    hashes |= np.arange(hashes.shape[-1], dtype=np.uint64)
    hashes.sort(axis=-1)
    hashes &= _INDEX
    return hashes


@lru_cache(maxsize=_KEPT)
def _sorted_permutation(records: int, seed: int, epoch: int) -> Indices:
    first, second, *_ = round_keys(seed, epoch)
    permutation = sort_by_hash(hash_words(np.arange(records, dtype=np.uint64), first, second)).view(np.int64)
    permutation.setflags(write=False)
    return permutation


@lru_cache(maxsize=_KEPT)
def _sorted_places(records: int, seed: int, epoch: int) -> Indices:
    places = np.empty(records, np.int64)
    places[_sorted_permutation(records, seed, epoch)] = np.arange(records)
    places.setflags(write=False)
    return places


def _walk(records: int, keys: tuple[int, ...], places: Words, *, inverse: bool) -> Indices:
    """Apply the network, or its inverse, to each place, at least once, until the result is below the number of records.

    The network is a bijection of more numbers than there are records. From a place, which is below, the walk comes back
    below in the end; and no two places come to the same number.
    """
    bits = (records - 1).bit_length()
    words = _network(places, bits, keys, inverse=inverse)
    outside = np.flatnonzero(words >= records)
    while len(outside):
        again = _network(words[outside], bits, keys, inverse=inverse)
        words[outside] = again
        outside = outside[again >= records]
    return words.view(np.int64)


def _change_half(changed: Words, other: Words, key: int, cut: Words, scratch: Words, shifted: Words) -> None:
    """Change one half of each word in place: ``changed ^= hash(other + key) >> cut``.

    ``cut`` is how many bits of the hash the changed half has no room for; ``scratch`` and ``shifted`` are memory to
    compute in.
    """
    np.add(other, np.array(key, np.uint64), out=scratch)
    np.multiply(scratch, _M1_WORD, out=scratch)
    np.right_shift(scratch, _HALF_WORD, out=shifted)
    np.bitwise_xor(scratch, shifted, out=scratch)
    np.multiply(scratch, _M2_WORD, out=scratch)
    np.right_shift(scratch, cut, out=scratch)
    np.bitwise_xor(changed, scratch, out=changed)


def _network(words: Words, bits: int, keys: tuple[int, ...], *, inverse: bool) -> Words:
    """Apply a keyed bijection of ``bits``-bit words, or its inverse: the halves of each word take turns to change.

    A round is ``high, low = low, high ^ hash(low + key)``, with as many bits of the hash as the changed half has. The
    inverse has the rounds from the last to the first. There is an even number of them, so in the end each half has its
    own width again.
    """
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    scratch = np.empty_like(words)
    shifted = np.empty_like(words)
    cuts = [np.array(64 - high_bits, np.uint64), np.array(64 - low_bits, np.uint64)]
    if inverse:
        for number, key in enumerate(reversed(keys), 1):
            low, high = high, low
            _change_half(high, low, key, cuts[number % 2], scratch, shifted)
    else:
        for number, key in enumerate(keys):
            _change_half(high, low, key, cuts[number % 2], scratch, shifted)
            low, high = high, low
    return (high << np.uint64(low_bits)) | low
