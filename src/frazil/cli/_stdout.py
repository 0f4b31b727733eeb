"""Writing to stdout: a reader that closed the pipe is fine, a full disk is an error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from frazil.errors import StorageError


class _Guarded:
    """A text stream whose reader may close the pipe (``frazil show … | head -1``) without an error.

    click ends the process with 1 on a broken pipe, which would read as a conflict.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with self._failures():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failures():
            self._stream.flush()

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self._silence()
        except OSError as error:
            self._silence()
            raise _cannot_write(
                error.strerror or type(error).__name__,
                'The command itself is done: check "frazil history TABLE" before repeating a write',
            ) from error

    def _silence(self) -> None:
        """Discard what is still buffered, or the interpreter would fail on it again at exit."""
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded_stdout() -> Iterator[None]:
    """Raises StorageError when stdout is closed (before anything is done) or cannot be written to."""
    if sys.stdout is None:
        raise _cannot_write("It is closed; nothing was done", "Redirect the output, as in > /dev/null")
    guarded = _Guarded(sys.stdout)
    with contextlib.redirect_stdout(cast(TextIO, guarded)):
        try:
            yield
        finally:
            guarded.flush()


def _cannot_write(why: str, advice: str) -> StorageError:
    return StorageError("Cannot write to stdout", evidence=why, advice=advice)
