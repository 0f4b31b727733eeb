"""An opt-in log of every client's calls and their results, for ``frazil check``.

    with recording("history", values={"shop.t": ("id", "v")}):
        …

or ``FRAZIL_RECORD=history FRAZIL_RECORD_VALUES=shop.t=id:v`` in the environment of a job, which records from the
import of frazil on. Values of a row are recorded only for the named columns.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frazil import observe
from frazil.errors import InvalidInput
from frazil.verify.recording.recorder import FileRecorder

FOLDER = "FRAZIL_RECORD"
VALUES = "FRAZIL_RECORD_VALUES"

__all__ = ["FOLDER", "VALUES", "FileRecorder", "record", "record_from_environment", "recording", "stop"]


def record(folder: str | Path, values: Mapping[str, tuple[Any, str]] | str | None = None) -> FileRecorder:
    """Record everything that this process does from now on. Raises InvalidInput when it already records."""
    if observe.recorder is not None:
        raise InvalidInput("This process is already recording", advice="Call frazil.verify.recording.stop() first")
    recorder = FileRecorder(folder, values)
    observe.recorder = recorder
    return recorder


def stop() -> None:
    """Stop recording. Open transactions have no outcome in the log."""
    recorder = observe.recorder
    observe.recorder = None
    if isinstance(recorder, FileRecorder):
        recorder.log.close()


@contextlib.contextmanager
def recording(folder: str | Path, values: Mapping[str, tuple[Any, str]] | str | None = None) -> Iterator[FileRecorder]:
    """Record what is done inside the block, by any thread."""
    recorder = record(folder, values)
    try:
        yield recorder
    finally:
        stop()


def record_from_environment() -> None:
    """Start recording if the environment says so."""
    folder = os.environ.get(FOLDER)
    if folder and observe.recorder is None:
        record(folder, os.environ.get(VALUES))
