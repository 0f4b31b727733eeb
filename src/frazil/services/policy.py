"""When a service is due: a pure function of a table's health, its properties, the time and the last actions.

Thresholds are table properties, with Iceberg's names where Iceberg has one. Each has a default, and 0 turns its trigger
off.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.format.metadata import TableMetadata
from frazil.format.properties import SERVICES_MODE
from frazil.format.retention import FIVE_DAYS_MS, MAX_SNAPSHOT_AGE
from frazil.model import ActionState, TimelineEntry
from frazil.services.health import TableHealth
from frazil.wording import counted

COMPACT, RESOLVE, REWRITE_DELETES = "compact", "resolve deletes", "rewrite deletes"
MANIFESTS, EXPIRE, ORPHANS, CLUSTER = "rewrite manifests", "expire snapshots", "remove orphans", "cluster"
VERBS = frozenset({COMPACT, RESOLVE, REWRITE_DELETES, MANIFESTS, EXPIRE, ORPHANS, CLUSTER})
"""The statement kinds of services, as commits record them (``Origin.verb``)."""

SMALL_FILES = "frazil.services.small-files"
DELETE_FILES = "frazil.services.delete-files"
DELETE_RATIO = "frazil.services.delete-ratio-percent"
EQUALITY_DELETES = "frazil.services.equality-delete-files"
SNAPSHOTS = "frazil.services.expired-snapshots"
MANIFEST_COUNT = "frazil.services.manifests"
MAX_AGE = "frazil.services.max-age-ms"
ORPHANS_EVERY = "frazil.services.orphans-every-ms"
REST = "frazil.services.rest-ms"
INLINE_BYTES = "frazil.services.inline-max-bytes"
DEFAULTS: Mapping[str, int] = {
    SMALL_FILES: 50,
    DELETE_FILES: 50,
    DELETE_RATIO: 30,
    EQUALITY_DELETES: 100,
    SNAPSHOTS: 100,
    MANIFEST_COUNT: 200,
    MAX_AGE: 0,
    ORPHANS_EVERY: 0,
    REST: 60_000,
    INLINE_BYTES: 256 << 20,
}


class Mode(enum.StrEnum):
    """Where the services of a table run."""

    INLINE = "inline"
    """In the writer's call, after its commit."""
    ASYNC = "async"
    """In a thread of the writer's process."""
    SERVICE = "service"
    """In ``frazil services run``."""
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Due:
    """A service that should run, and why."""

    service: str
    reason: str
    found: int
    limit: int

    def to_dict(self) -> dict[str, Any]:
        return {"service": self.service, "reason": self.reason, "found": self.found, "limit": self.limit}


def mode_of(metadata: TableMetadata) -> Mode:
    """The table's setting. Without one, a table with equality deletes resolves them inline (rule P36)."""
    text = metadata.properties.get(SERVICES_MODE)
    if text is None:
        return Mode.INLINE if _in_summary(metadata, "total-equality-deletes") else Mode.OFF
    return Mode(text) if text in tuple(Mode) else Mode.OFF


def may_be_due(metadata: TableMetadata, now_ms: int) -> bool:
    """Whether a look at the manifests may be worth its time. Reads only what is at hand, after every commit."""
    if is_due_by_count(metadata):
        return True
    limits = metadata.properties
    files, deletes = limit_of(limits, SMALL_FILES), limit_of(limits, DELETE_FILES)
    return (
        (0 < files <= _in_summary(metadata, "total-data-files"))
        or (0 < deletes <= _in_summary(metadata, "total-delete-files"))
        or _has_old_snapshots(metadata, now_ms)
    )


def is_due_by_count(metadata: TableMetadata) -> bool:
    """So many upserts have come that readers without equality deletes should not wait longer."""
    limit = limit_of(metadata.properties, EQUALITY_DELETES)
    if not limit or not _in_summary(metadata, "total-equality-deletes"):
        return False
    return _in_summary(metadata, "total-delete-files") >= limit


def due(
    health: TableHealth, properties: Mapping[str, str], now_ms: int, last: Iterable[TimelineEntry] = ()
) -> list[Due]:
    """The services that should run now, the most urgent first. ``last``: the table's newest actions."""
    known = list(last)
    found = [each for each in _triggered(health, properties, now_ms, known) if each is not None]
    rest = limit_of(properties, REST)
    return [each for each in found if not _rests(each.service, known, now_ms, rest)]


def _triggered(
    health: TableHealth, properties: Mapping[str, str], now_ms: int, last: list[TimelineEntry]
) -> Iterable[Due | None]:
    def over(service: str, name: str, found: int, text: str) -> Due | None:
        limit = limit_of(properties, name)
        return Due(service, text, found, limit) if 0 < limit <= found else None

    equality = counted(health.equality_delete_files, "equality delete file")
    resolve = over(RESOLVE, EQUALITY_DELETES, health.equality_delete_files, equality)
    yield resolve
    positions = counted(health.position_delete_files, "position delete file")
    yield over(REWRITE_DELETES, DELETE_FILES, health.position_delete_files, positions)
    ratio = over(COMPACT, DELETE_RATIO, health.delete_percent, f"{health.delete_percent} % of the rows are deleted")
    small = over(COMPACT, SMALL_FILES, health.small_files, counted(health.small_files, "small file"))
    yield ratio or small or _overdue(COMPACT, MAX_AGE, health.small_files, properties, now_ms, last)
    snapshots = counted(health.expired_snapshots, "expired snapshot")
    yield over(EXPIRE, SNAPSHOTS, health.expired_snapshots, snapshots) or _overdue(
        EXPIRE, MAX_AGE, health.expired_snapshots, properties, now_ms, last
    )
    yield over(MANIFESTS, MANIFEST_COUNT, health.manifests, counted(health.manifests, "manifest"))
    yield _overdue(ORPHANS, ORPHANS_EVERY, 1, properties, now_ms, last)


def _overdue(
    service: str, name: str, found: int, properties: Mapping[str, str], now_ms: int, last: list[TimelineEntry]
) -> Due | None:
    """There is something to do, and the service has not run for so long."""
    every = limit_of(properties, name)
    ran = max((each.completed_ms or 0 for each in last if each.service == service), default=0)
    age = now_ms - ran
    if not every or not found or age < every:
        return None
    return Due(service, "it has not run for too long" if ran else "it has never run", age if ran else 0, every)


def _rests(service: str, last: list[TimelineEntry], now_ms: int, rest_ms: int) -> bool:
    """It failed a moment ago, or is at work."""
    mine = [each for each in last if each.service == service]
    # An action may have ended after the head was read.
    failed = [max(0, now_ms - (each.completed_ms or 0)) for each in mine if each.state is ActionState.FAILED]
    return any(not each.is_over for each in mine) or any(ago < rest_ms for ago in failed)


def limit_of(properties: Mapping[str, str], name: str) -> int:
    """A threshold; its default where the property is missing or not a number."""
    text = properties.get(name, "")
    return int(text) if text.isdigit() else DEFAULTS[name]


def _in_summary(metadata: TableMetadata, key: str) -> int:
    head = metadata.head_snapshot()
    text = "" if head is None else head.summary.get(key, "")
    return int(text) if text.isdigit() else 0


def _has_old_snapshots(metadata: TableMetadata, now_ms: int) -> bool:
    # Snapshots are listed in commit order.
    number, kept = limit_of(metadata.properties, SNAPSHOTS), metadata.raw.get("snapshots") or ()
    if not 0 < number < len(kept):
        return False
    text = metadata.properties.get(MAX_SNAPSHOT_AGE, "")
    age = int(text) if text.isdigit() else FIVE_DAYS_MS
    return bool(kept[number - 1]["timestamp-ms"] < now_ms - age)
