"""Small helpers for texts that people read."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 file``, ``2 files``; ``plural`` where it is not the noun with an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return "".join(names) if len(names) <= 1 else f"{', '.join(names[:-1])} and {names[-1]}"


MOST_SHORT = 64


def short(text: str) -> str:
    """At most 64 printable characters: a name that is recorded with every commit."""
    return "".join(each if each.isprintable() else " " for each in str(text)).strip()[:MOST_SHORT].rstrip()
