"""Statistics of the queue by table, for any user who may read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frazil.catalog._db import Db
from frazil.catalog._queue import QUEUE
from frazil.catalog._sql import SqlStore
from frazil.catalog.base import QueueState
from frazil.errors import PermissionDenied

LATELY_MS = 60_000
_IS_WAITING = f"state = {int(QueueState.WAITING)} AND deadline > now_ms"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One table's queue. "Lately": queued in the last minute; when a commit was settled is not recorded."""

    waiting: int = 0
    """Now, without those that have expired."""
    oldest_wait_ms: int = 0
    """0 while the queue is empty."""
    returned: int = 0
    """Lately: returned to their writers to be checked again. Some of these are conflicts; how many is not recorded."""
    withdrawn: int = 0
    """Lately: withdrawn by writers that gave up or ran out of time."""
    late_tries: int = 0
    """Lately, and of those that wait: how often a leader began to commit one that was already old. As a rule an earlier
    group with it had failed."""


def queue_stats(store: SqlStore) -> Mapping[str, QueueStats] | None:
    """By table uuid, without tables whose queue is empty. None: the catalog has no queue, or this user may not read it.

    A store that was opened read-only has no ``queue``; its statistics are read all the same.
    """
    engine = store._engine
    # The clock once for all rows, so that none is older than the oldest.
    sql = (
        f"SELECT table_uuid, count(*) FILTER (WHERE {_IS_WAITING}), "  # noqa: S608
        f"max(now_ms - enqueued_at) FILTER (WHERE {_IS_WAITING}), "
        f"count(*) FILTER (WHERE state = {int(QueueState.RETURNED)}), "
        f"count(*) FILTER (WHERE state = {int(QueueState.WITHDRAWN)}), "
        f"sum(tries) FROM {QUEUE} CROSS JOIN (SELECT {engine.clock()} AS now_ms) AS clock "
        f"WHERE ({_IS_WAITING}) OR (state <> {int(QueueState.WAITING)} AND enqueued_at > now_ms - ?) "
        "GROUP BY table_uuid"
    )

    def work(db: Db) -> list[Any] | None:
        return db.execute(sql, (LATELY_MS,)).fetchall() if engine.columns(db, QUEUE) else None

    try:
        rows = engine.read(work)
    except PermissionDenied:
        return None
    if rows is None:
        return None
    return {
        uuid: QueueStats(waiting, max(0, int(oldest or 0)), returned, withdrawn, int(tries))
        for uuid, waiting, oldest, returned, withdrawn, tries in rows
        # A fenced commit that never arrived belongs to no table.
        if uuid
    }
