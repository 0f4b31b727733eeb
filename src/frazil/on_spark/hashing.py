"""Spark's xxhash64 for the driver, so that files can be told apart by a number that every row computes for itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
SEED = 42


@lru_cache(maxsize=65_536)
def of_text(text: str, seed: int = SEED) -> int:
    """``xxhash64(text)``, unsigned."""
    data = text.encode()
    end = len(data)
    at = 0
    if end >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at <= end - 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], int.from_bytes(data[at : at + 8], "little"))
                at += 8
        found = sum(_turned(each, by) for each, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for each in lanes:
            found = ((found ^ _round(0, each)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + end) & _MASK
    while at + 8 <= end:
        found = (_turned(found ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= end:
        part = int.from_bytes(data[at : at + 4], "little") * _P1
        found = (_turned(found ^ (part & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = (_turned(found ^ (byte * _P5 & _MASK), 11) * _P1) & _MASK
    return _mixed(found)


def of_int(value: int, seed: int) -> int:
    """The hash of an int, with the hash of what stands before it as the seed: ``xxhash64(text, value)``."""
    found = (seed + _P5 + 4) & _MASK
    found ^= ((value & 0xFFFFFFFF) * _P1) & _MASK
    return _mixed((_turned(found, 23) * _P2 + _P3) & _MASK)


def told_apart(texts: Iterable[str], longest: int) -> tuple[int, Mapping[str, int]]:
    """A salt with which ``xxhash64(text, salt)`` of all these differ, and stay different when a number below
    ``longest`` is xored to each; and the hashes, as signed numbers.
    """
    bits = max(0, longest - 1).bit_length()
    plain = {text: of_text(text) for text in texts}
    salt = 0
    while True:
        found = {text: of_int(salt, each) for text, each in plain.items()}
        if len({each >> bits for each in found.values()}) == len(found):
            return salt, {text: _signed(each) for text, each in found.items()}
        salt += 1


def _round(lane: int, value: int) -> int:
    return (_turned((lane + value * _P2) & _MASK, 31) * _P1) & _MASK


def _turned(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK


def _mixed(value: int) -> int:
    value ^= value >> 33
    value = (value * _P2) & _MASK
    value ^= value >> 29
    value = (value * _P3) & _MASK
    return value ^ (value >> 32)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
