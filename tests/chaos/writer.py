"""One writer process that continues whatever happens, and notes the outcome of each batch."""

from __future__ import annotations

import logging
import os
import signal
import time
import traceback
from pathlib import Path

import frazil
from chaos.faults import Switch, give_trouble
from concurrency.leaders.orders import Deed, Desk, Moment
from concurrency.leaders.writer import Notes, Watched, commit_id_of
from concurrency.writers import Address, batch
from frazil.errors import (
    CatalogUnavailable,
    CommitUnknown,
    NoSuchTable,
    PermissionDenied,
    RetriesExhausted,
    StorageError,
)

PATIENT = frazil.Retry(tries=1000, base_ms=20, cap_ms=200, total_s=30, fault_tries=20)
_PAUSE_S = 0.05


def write(address: Address, writer: int, first: int, desk: Desk, notes_path: Path, switch: Switch) -> None:
    """Append batches from ``first`` on until the campaign is over."""
    notes, campaign = Notes(notes_path, writer), os.getppid()
    # What goes wrong here is meant to.
    for name in ("frazil", "psycopg"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    number = first

    def obey(moment: Moment) -> None:
        order = desk.take(moment)
        if order is not None:
            notes.add("obeyed", order=order.number, batch=number)
            if order.deed is Deed.REPEAT:
                watched.repeat()
                return
            os.kill(os.getpid(), signal.SIGKILL if order.deed is Deed.DIE else signal.SIGSTOP)

    try:
        table = _opened(address)
        give_trouble(table._lake.storage, switch)
        watched = Watched(table._lake.catalog, obey, notes)
        while True:
            # With a commit id the same batch is sent until it is acknowledged.
            number += _append(table, writer, number, notes, watched)
            if desk.is_finished or os.getppid() != campaign:
                return
    except BaseException:
        notes.add("failed", batch=number, text=traceback.format_exc())
        raise


def _append(table: frazil.Table, writer: int, number: int, notes: Notes, watched: Watched) -> int:
    """One call; returns how far to go on."""
    commit_id = commit_id_of(writer, number)
    notes.add("began", batch=number)
    try:
        done = table.append(batch(writer, number), commit_id=commit_id, on_phase=watched.on_phase, retry=PATIENT)
    except CommitUnknown as error:
        notes.add("unknown", batch=number, text=str(error))
    except (CatalogUnavailable, StorageError, PermissionDenied, RetriesExhausted) as error:
        notes.add("refused", batch=number, text=f"{type(error).__name__}: {error}")
    else:
        notes.add("acknowledged", batch=number, group_size=done.group_size)
        return 1
    time.sleep(_PAUSE_S)
    return 0 if commit_id is not None else 1


def _opened(address: Address) -> frazil.Table:
    """The database may be away at this moment."""
    end = time.monotonic() + 60
    while True:
        try:
            return address.open()
        except (CatalogUnavailable, NoSuchTable, StorageError):
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_S)
