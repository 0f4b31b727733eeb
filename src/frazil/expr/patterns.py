"""Patterns of LIKE as regular expressions, and back."""

from __future__ import annotations

from typing import Literal

from frazil.errors import InvalidInput

Shape = Literal["equal", "prefix", "other"]
"""A pattern without wildcards, one that ends in its only %, and any other."""

_SPECIAL = frozenset("\\.+*?()|[]{}^$")
_START, _END = r"(?s)\A(?:", r")\z"


def like_regex(pattern: str, escape: str) -> tuple[str, str, Shape]:
    """The fixed beginning of the pattern, the whole as a regular expression, and its shape."""
    fixed, regex = "", ""
    wildcards = ""
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == escape:
            position += 1
            char = pattern[position] if position < len(pattern) else ""
            if char not in ("%", "_", escape) or not char:
                raise InvalidInput(
                    f"The pattern {pattern!r} has the escape character {escape!r} before a character that is not "
                    "escaped",
                    advice=f"Double it to match {escape!r} itself",
                )
        elif char in "%_":
            wildcards += char
            regex += ".*" if char == "%" else "."
            position += 1
            continue
        fixed += char if not wildcards else ""
        regex += "\\" + char if char in _SPECIAL else char
        wildcards += "x" if wildcards else ""
        position += 1
    shape: Shape = "equal" if not wildcards else "prefix" if set(wildcards) == {"%"} else "other"
    return fixed, f"{_START}{regex}{_END}", shape


def like_pattern(regex: str) -> str:
    """The pattern that ``like_regex`` made this regular expression from, with a backslash as the escape character."""
    body = regex.removeprefix(_START).removesuffix(_END)
    pattern = ""
    position = 0
    while position < len(body):
        char = body[position]
        if char == ".":
            is_any = body[position + 1 : position + 2] == "*"
            pattern += "%" if is_any else "_"
            position += 2 if is_any else 1
            continue
        if char == "\\":
            position += 1
            char = body[position]
        pattern += "\\" + char if char in "%_\\" else char
        position += 1
    return pattern
