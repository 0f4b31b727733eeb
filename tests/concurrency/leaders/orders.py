"""Orders to die or to freeze at a named moment, for the first writer that reaches it."""

from __future__ import annotations

import contextlib
import enum
import os
from dataclasses import dataclass
from pathlib import Path


class Moment(enum.StrEnum):
    QUEUED = "waiting, with a ticket in the queue"
    BEFORE_FILES = "before files"
    PREPARED = "between files and swap"
    INSIDE = "inside the swap"
    SWAPPED = "after the commit"


class Deed(enum.StrEnum):
    DIE = "die"
    FREEZE = "freeze"
    REPEAT = "send the swap again, now and late"


@dataclass(frozen=True)
class Order:
    number: int
    moment: Moment
    deed: Deed


class Desk:
    """A folder with the current order: files survive the death of a writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current = folder / "order"
        self._finish = folder / "finish"

    def give(self, order: Order) -> None:
        draft = self._folder / "draft"
        draft.write_text(f"{order.number}\n{order.moment}\n{order.deed}")
        draft.rename(self._current)

    def clear(self) -> None:
        """Remove the current order."""
        self._current.unlink(missing_ok=True)

    def take(self, moment: Moment) -> Order | None:
        """The current order, if it is for this moment and no other writer has taken it."""
        try:
            number, asked, deed = self._current.read_text().split("\n")
        except FileNotFoundError:
            return None
        if asked != moment:
            return None
        with contextlib.suppress(FileExistsError):
            # Only one process can create the file.
            os.close(os.open(self._folder / f"taken-{number}", os.O_CREAT | os.O_EXCL))
            return Order(int(number), moment, Deed(deed))
        return None

    def finish(self) -> None:
        self._finish.touch()

    @property
    def is_finished(self) -> bool:
        return self._finish.exists()
