"""The order of all commits of a lake, as the catalogs keep it beside their pointers (rule P41).

Each swap records what it did to each table, with one stamp, in its own transaction. The stamp is taken when everything
that the swap sets or compares is locked, and is never below one that was recorded before. A commit that depends on
another therefore never has a smaller stamp, and all commits up to a stamp are a state that the lake could be in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from frazil.catalog.base import PointerMove, Prepared
from frazil.catalog.store import PointerSwap, Swap
from frazil.errors import InvalidInput
from frazil.format.times import iso
from frazil.model import Ident

ORDER_KEPT = 200_000
"""Rows of a database, one for each table of a commit; older ones are deleted."""
ORDER_KEPT_MS = 30 * 24 * 60 * 60 * 1000
TRIM_EVERY = 200
TRIMMED_AT_ONCE = 2_000
"""More than are added meanwhile, also where most commits have several tables."""
_SOON_MS = 20
"""So close to the present a time is waited for; beyond it lies in the future."""


def moves_of(swap: Swap) -> tuple[PointerMove, ...]:
    """What a swap does to each name, in the order of the names. Guards are left alone."""
    return tuple(
        PointerMove(each.ident, each.expected, each.new, each.about)
        for each in swap.in_order
        if isinstance(each, PointerSwap)
    )


def about(prepared: Prepared) -> str:
    """What a commit did to a table, as JSON: the table's UUID, the new snapshots with their writers, the commit id."""
    metadata = prepared.metadata or prepared.head.metadata
    found: dict[str, Any] = {"uuid": metadata.uuid}
    updates = prepared.proposal.updates
    added = [each["snapshot"] for each in updates if each.get("action") == "add-snapshot"]
    if added:
        found["snapshots"] = [_snapshot(each) for each in added]
    elif updates:
        found["verb"] = str(updates[0].get("action", "")).replace("-", " ")
    if prepared.proposal.record is not None:
        found["commit"] = prepared.proposal.record.commit_id
    return orjson.dumps(found).decode()


def _snapshot(raw: Mapping[str, Any]) -> list[Any]:
    return [raw["snapshot-id"], raw.get("sequence-number") or 0, _kept(raw.get("summary") or {})]


def _kept(summary: Mapping[str, str]) -> dict[str, str]:
    """What says who wrote a snapshot; no statistics."""
    return {key: value for key, value in summary.items() if key == "operation" or key.startswith("frazil.")}


def facts(move: PointerMove) -> Mapping[str, Any]:
    """What ``about`` wrote; empty where it cannot be read."""
    try:
        found = orjson.loads(move.about) if move.about else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def renamed(old: Ident, new: Ident, location: str) -> tuple[PointerMove, ...]:
    moves = PointerMove(old, location, None), PointerMove(new, None, location)
    return tuple(sorted(moves, key=lambda each: each.ident))


def entry_of(moves: Sequence[PointerMove]) -> str:
    """What the rows of one commit have in common, and those of no other commit: the name of a file of its own."""
    first = moves[0]
    return "" if len(moves) == 1 else first.location or first.previous or ""


def is_over(as_of_ms: int, clock_ms: int, newest_ms: int | None) -> bool:
    """No later commit gets a stamp up to this time: stamps never run back, and the clock is beyond it."""
    return max(clock_ms, newest_ms or 0) > as_of_ms


def check_begun(as_of_ms: int, oldest_ms: int | None) -> None:
    """Raises InvalidInput for a time before the recorded order."""
    if oldest_ms is not None and as_of_ms >= oldest_ms:
        return
    begins = "No commit is recorded yet" if oldest_ms is None else f"It begins at {iso(oldest_ms)}"
    raise InvalidInput(
        f"The lake cannot be read as of {iso(as_of_ms)}: the recorded order of its commits begins later",
        evidence=begins,
        advice="Choose a later time, or read one table by its own history: lake.table(…).scan(as_of=…)",
    )


def check_not_ahead(as_of_ms: int, clock_ms: int) -> None:
    """Raises InvalidInput for a time in the future. One that is close to the present is waited for."""
    if as_of_ms <= clock_ms + _SOON_MS:
        return
    raise InvalidInput(
        f"as_of={iso(as_of_ms)} lies in the future",
        evidence=f"The catalog's clock says {iso(clock_ms)}",
        advice="Give an earlier time, or leave as_of out for the lake as it is now",
    )
