"""Reads several files concurrently and yields their batches in order, with a bounded number buffered."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

Task = TypeVar("Task")
Piece = TypeVar("Piece")
FILES_AHEAD = 4
PIECES_AHEAD = 4
"""Batches of one file that may be buffered."""


class _Closed(Exception):
    """The consumer has closed the channel."""


class _Channel(Generic[Piece]):
    """A bounded queue from the thread that reads one task to the consumer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Piece] = deque()
        self._finished = self._closed = False
        self._error: BaseException | None = None

    def fill(self, pieces: Callable[[], Iterator[Piece]]) -> None:
        error: BaseException | None = None
        try:
            with contextlib.closing(_as_generator(pieces())) as reading:
                for piece in reading:
                    self._put(piece)
        except _Closed:
            pass
        except BaseException as caught:  # noqa: BLE001 - raised in the consumer
            error = caught
        with self._changed:
            self._finished, self._error = True, error
            self._changed.notify_all()

    def _put(self, piece: Piece) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < PIECES_AHEAD)
            if self._closed:
                raise _Closed
            self._waiting.append(piece)
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Piece]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._finished)
                if not self._waiting:
                    if self._error is not None:
                        raise self._error
                    return
                piece = self._waiting.popleft()
                self._changed.notify_all()
            yield piece

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()


def in_order(
    tasks: Sequence[Task], read: Callable[[Task], Iterator[Piece]], *, ahead: int | None = None
) -> Generator[Piece, None, None]:
    """The pieces of all tasks, task by task, while the next few tasks are already being read.

    Closing the generator stops the reading and waits until the threads have closed their files.
    """
    ahead = FILES_AHEAD if ahead is None else ahead
    if len(tasks) <= 1 or ahead <= 1:
        for task in tasks:
            with contextlib.closing(_as_generator(read(task))) as pieces:
                yield from pieces
        return
    running: deque[_Channel[Piece]] = deque()
    pool = ThreadPoolExecutor(ahead, thread_name_prefix="frazil-read")
    upcoming = iter(tasks)

    def start_next() -> None:
        for task in upcoming:
            channel: _Channel[Piece] = _Channel()
            running.append(channel)
            pool.submit(channel.fill, partial(read, task))
            return

    try:
        for _ in range(ahead):
            start_next()
        while running:
            yield from running[0]
            running.popleft()
            start_next()
    finally:
        for channel in running:
            channel.close()
        pool.shutdown(wait=True, cancel_futures=True)


def _as_generator(pieces: Iterator[Piece]) -> Generator[Piece, None, None]:
    try:
        yield from pieces
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            close()
