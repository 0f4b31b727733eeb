"""Spark's xxhash64, computed on the driver: rows name their file by a number that Spark computes from its path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xxhash import xxh64_intdigest

SEED = 42
"""The seed of Spark's hash functions."""


def hash_string(text: str, seed: int = SEED) -> int:
    """``xxhash64(text)``, unsigned."""
    return xxh64_intdigest(text.encode(), seed)


def hash_int(value: int, seed: int) -> int:
    """The hash of an int, seeded with the hash of the argument before it: ``xxhash64(text, value)``, unsigned."""
    return xxh64_intdigest(value.to_bytes(4, "little", signed=True), seed)


def distinct_hashes(texts: Iterable[str], row_limit: int) -> tuple[int, Mapping[str, int]]:
    """A salt for which ``xxhash64(text, salt)`` differs for all the texts, and the signed hashes.

    The hashes stay distinct when a number below ``row_limit`` is xored to each.
    """
    bits = max(0, row_limit - 1).bit_length()
    unsalted = {text: hash_string(text) for text in texts}
    salt = 0
    while True:
        hashes = {text: hash_int(salt, each) for text, each in unsalted.items()}
        if len({each >> bits for each in hashes.values()}) == len(hashes):
            return salt, {text: _signed(each) for text, each in hashes.items()}
        salt += 1


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
