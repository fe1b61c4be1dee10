"""Permutations of any number of records, any place of which can be computed without the rest: the arithmetic of orders.

Version 1 of the algorithm, in uint64 arithmetic modulo 2**64 throughout; docs/order.md specifies it with golden
vectors. It never changes under this number.

* ``mix`` is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014, with
  the constants of Stafford's variant 13): a bijection of 64-bit words.
* The keys of (seed, epoch) come from a Feistel network over the pair, which is a bijection: no two pairs share them.
* Up to 65,536 records: the record numbers are sorted by a keyed hash, which is an exact permutation for any n.
* Above: an 8-round Feistel network over the next power of two, applied again until the result is below n (Black,
  Rogaway: Ciphers with arbitrary finite domains, 2002).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

SORTED_UP_TO = 1 << 16
MASK = (1 << 64) - 1
GOLDEN_RATIO = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_KEY_ROUNDS = 6
_ROUNDS = 8
_BLOCK = 1 << 13
# Of cached pieces of permutations: enough for those of many datasets, so that a mixture need not compute them again.
_KEPT_NBYTES = 64 << 20
_FEW = 16
_AT_ONCE = 1 << 11

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


def permuted(records: int, seed: int, epoch: int, start: int, stop: int) -> Indices:
    """Return places ``start`` to ``stop`` of the permutation of ``records`` numbers keyed by (seed, epoch)."""
    if records <= SORTED_UP_TO:
        return _sorted_permutation(records, seed, epoch)[start:stop].copy()
    out = np.empty(stop - start, np.int64)
    place = start
    while place < stop:
        number, offset = divmod(place, _BLOCK)
        piece = _block(records, seed, epoch, number)[offset : offset + stop - place]
        out[place - start : place - start + len(piece)] = piece
        place += len(piece)
    return out


def permuted_pieces(records: int, seed: int, epoch: int, start: int, stop: int) -> Iterator[Indices]:
    """Yield what :func:`permuted` returns, in pieces that are not cached: for a single pass."""
    if records <= SORTED_UP_TO:
        yield permuted(records, seed, epoch, start, stop)
        return
    keys = round_keys(seed, epoch)
    for first in range(start, stop, SORTED_UP_TO):
        yield _walked(records, keys, np.arange(first, min(first + SORTED_UP_TO, stop), dtype=np.uint64))


def permuted_at(records: int, seed: int, epoch: int, places: Indices) -> Indices:
    """Return what :func:`permuted` returns, at any places."""
    if records <= SORTED_UP_TO:
        found: Indices = _sorted_permutation(records, seed, epoch)[places]
        return found
    return _walked(records, round_keys(seed, epoch), places.astype(np.uint64))


def places_of(records: int, seed: int, epoch: int, numbers: Indices) -> Indices:
    """Return the place of each record number in the permutation of ``records`` numbers keyed by (seed, epoch)."""
    if records <= SORTED_UP_TO:
        order = permuted(records, seed, epoch, 0, records)
        place_of = np.empty_like(order)
        place_of[order] = np.arange(records)
        found: Indices = place_of[numbers]
        return found
    keys = round_keys(seed, epoch)
    bits = (records - 1).bit_length()
    # The way back of a walk is the walk of the way back.
    words = _feistel_back(numbers.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(words >= records)
    while len(outside):
        again = _feistel_back(words[outside], bits, keys)
        words[outside] = again
        outside = outside[again >= records]
    return words.view(np.int64)


@lru_cache(maxsize=_KEPT_NBYTES // (8 * _BLOCK))
def _block(records: int, seed: int, epoch: int, number: int) -> Indices:
    """Return one block of a permutation; cached, because the next batch usually lies in it too."""
    start = number * _BLOCK
    places = np.arange(start, min(start + _BLOCK, records), dtype=np.uint64)
    block: Indices = _walked(records, round_keys(seed, epoch), places)
    block.setflags(write=False)
    return block


def mix(word: int) -> int:
    """Scramble a 64-bit word, so that no structure is left; a bijection."""
    word = (word ^ (word >> 30)) * _M1 & MASK
    word = (word ^ (word >> 27)) * _M2 & MASK
    return word ^ (word >> 31)


@lru_cache(maxsize=256)
def round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    """Return eight 64-bit keys; the first two determine seed and epoch, so that no two pairs share them."""
    left, right = seed & MASK, epoch & MASK
    keys = []
    for number in range(_KEY_ROUNDS + _ROUNDS):
        left, right = right, left ^ mix((right + (number + 1) * GOLDEN_RATIO) & MASK)
        if number >= _KEY_ROUNDS:
            keys.append(right)
    return tuple(keys)


@lru_cache(maxsize=_KEPT_NBYTES // (8 * SORTED_UP_TO))
def _sorted_permutation(records: int, seed: int, epoch: int) -> Indices:
    permutation = _argsort(_hashes(records, round_keys(seed, epoch)))
    permutation.setflags(write=False)
    return permutation


def _hashes(records: int, keys: tuple[int, ...]) -> Words:
    """Return the hash of each record number, by the first two keys."""
    hashes = np.arange(records, dtype=np.uint64)
    # The processor's first cache holds a piece and its copy.
    for start in range(0, records, _AT_ONCE):
        piece = hashes[start : start + _AT_ONCE]
        shifted = np.empty_like(piece)
        piece += np.uint64(keys[0])
        _mix_in_place(piece, shifted)
        piece ^= np.uint64(keys[1])
        _mix_in_place(piece, shifted)
    return hashes


def _mix_in_place(words: Words, shifted: Words) -> None:
    """Apply :func:`mix` to many words, with another array of the same shape to work in."""
    for shift, factor in ((30, _M1), (27, _M2)):
        np.right_shift(words, np.uint64(shift), out=shifted)
        words ^= shifted
        words *= np.uint64(factor)
    np.right_shift(words, np.uint64(31), out=shifted)
    words ^= shifted


def _argsort(hashes: Words) -> Indices:
    """Return the stable order of at most :data:`SORTED_UP_TO` words."""
    # Sorting words is several times faster than sorting indices by words: the index takes the place of the last bits.
    low = np.uint64(SORTED_UP_TO - 1)
    packed = np.sort((hashes & ~low) | np.arange(len(hashes), dtype=np.uint64))
    found: Indices = (packed & low).view(np.int64)
    packed &= ~low
    if (packed[1:] == packed[:-1]).any():
        found = np.argsort(hashes, kind="stable")
    return found


def mixed(words: Words) -> Words:
    """Apply :func:`mix` to many words at once."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_M1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_M2)
    scrambled: Words = words ^ (words >> np.uint64(31))
    return scrambled


def _walked(records: int, keys: tuple[int, ...], places: Words) -> Indices:
    bits = (records - 1).bit_length()
    words = feistel(places, bits, keys)
    outside = np.flatnonzero(words >= records)
    while len(outside) > _FEW:
        again = feistel(words[outside], bits, keys)
        words[outside] = again
        outside = outside[again >= records]
    for place in outside.tolist():
        word = int(words[place])
        while word >= records:
            word = _feistel_word(word, bits, keys)
        words[place] = word
    return words.view(np.int64)


def _feistel_word(word: int, bits: int, keys: tuple[int, ...]) -> int:
    """Apply a keyed bijection of ``bits``-bit words: the two halves of the word take turns to change each other."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = word & ((1 << low_bits) - 1)
    high = word >> low_bits
    # After each round the halves, and so their widths, have changed places.
    for key in keys:
        mixed = (low + key) * _M1 & MASK
        mixed = (mixed ^ (mixed >> 32)) * _M2 & MASK
        low, high = high ^ (mixed >> (64 - high_bits)), low
        low_bits, high_bits = high_bits, low_bits
    return (high << low_bits) | low


def feistel(words: Words, bits: int, keys: tuple[int, ...], tweaks: Words | None = None) -> Words:
    """Apply :func:`_feistel_word` to many words at once; the tweak of a word is added to all of its keys."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    scratch, shifted = np.empty_like(words), np.empty_like(words)
    # numpy handles arrays without dimensions twice as fast as scalars.
    m1, m2, half, cut, next_cut = (np.array(word, np.uint64) for word in (_M1, _M2, 32, 64 - high_bits, 64 - low_bits))
    for key in keys:
        np.add(low, np.array(key, np.uint64), out=scratch)
        if tweaks is not None:
            np.add(scratch, tweaks, out=scratch)
        np.multiply(scratch, m1, out=scratch)
        np.right_shift(scratch, half, out=shifted)
        np.bitwise_xor(scratch, shifted, out=scratch)
        np.multiply(scratch, m2, out=scratch)
        np.right_shift(scratch, cut, out=scratch)
        np.bitwise_xor(high, scratch, out=high)
        low, high = high, low
        cut, next_cut = next_cut, cut
    # An even number of rounds: each half has its own width again.
    return (high << np.uint64(low_bits)) | low


def _feistel_back(words: Words, bits: int, keys: tuple[int, ...]) -> Words:
    """Undo :func:`_feistel`."""
    low_bits = bits // 2
    high_bits = bits - low_bits
    low = words & np.uint64((1 << low_bits) - 1)
    high = words >> np.uint64(low_bits)
    for key in reversed(keys):
        # Undo one round: the halves, and so their widths, change places again.
        low, high = high, low
        low_bits, high_bits = high_bits, low_bits
        mixed = (low + np.uint64(key)) * np.uint64(_M1)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(_M2)
        high = high ^ (mixed >> np.uint64(64 - high_bits))
    return (high << np.uint64(low_bits)) | low
