"""What a client of Postgres sends, taken apart into requests that can be sent again over another connection."""

from __future__ import annotations

import re
from collections.abc import Iterator

_NO_STARTUP = (80877103, 80877104)
"""Questions for encryption, which come before the real beginning."""
_CHANGES = re.compile(rb"\b(INSERT|UPDATE|DELETE)\b")


class Requests:
    """Of one connection. A request is all that a client sends before it waits for an answer."""

    def __init__(self) -> None:
        self._unread = b""
        self._has_begun = False
        self._parts: list[bytes] = []
        self._prepared: dict[bytes, bytes] = {}

    def take(self, data: bytes) -> Iterator[bytes]:
        """The requests that end with this data, each with the statements that it expects to be prepared."""
        self._unread += data
        while (message := self._next()) is not None:
            kind = message[:1]
            if kind == b"P":
                self._prepared[_text(message, 5)] = message
            self._parts.append(message)
            if kind in (b"S", b"Q"):
                yield self._whole()

    def _next(self) -> bytes | None:
        if not self._has_begun:
            self._skip_beginning()
        size = 1 + int.from_bytes(self._unread[1:5], "big")
        if not self._has_begun or len(self._unread) < max(size, 5):
            return None
        message, self._unread = self._unread[:size], self._unread[size:]
        # Passwords are for the connection that asked for them.
        return self._next() if message[:1] == b"p" else message

    def _skip_beginning(self) -> None:
        while len(self._unread) >= (size := int.from_bytes(self._unread[:4], "big")) >= 8:
            code = int.from_bytes(self._unread[4:8], "big")
            self._unread = self._unread[size:]
            if code not in _NO_STARTUP:
                self._has_begun = True
                return

    def _whole(self) -> bytes:
        parts, self._parts = self._parts, []
        parsed = {_text(each, 5) for each in parts if each[:1] == b"P"}
        bound = {_text(each, each.index(b"\0", 5) + 1) for each in parts if each[:1] == b"B"}
        return b"".join([*(self._prepared[name] for name in sorted(bound - parsed)), *parts])


def is_change(request: bytes) -> bool:
    """Whether it changes rows by itself; a transaction's statements depend on the answers to those before them."""
    return _CHANGES.search(request) is not None


def _text(message: bytes, start: int) -> bytes:
    return message[start : message.index(b"\0", start)]
