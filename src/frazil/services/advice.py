"""What a table's services would save, in numbers, and which of them is due: ``Table.advise()``. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from frazil.catalog.base import Catalog
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Ident
from frazil.services import policy
from frazil.services.health import TableHealth, health_of
from frazil.services.policy import Due
from frazil.services.registry import SERVICES
from frazil.wording import counted

_LAST_ACTIONS = 50
_MANIFEST_BYTES = "commit.manifest.target-size-bytes"
_DEFAULT_MANIFEST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Saving:
    """What one service would change."""

    service: str
    files: int = 0
    """How many files fewer a scan of the newest rows opens."""
    bytes_read: int = 0
    """How much is read for it."""
    delete_rows: int = 0
    """Rows of delete files that scans need not apply any more."""
    snapshots: int = 0
    manifests: int = 0
    metadata_bytes: int = 0
    is_due: bool = False
    """The table's policy says that it is time."""
    reason: str = ""
    """Why it is due; empty: it is not."""
    is_available: bool = True
    """This version has the service."""

    @property
    def is_nothing(self) -> bool:
        return not (self.files or self.delete_rows or self.snapshots or self.manifests or self.metadata_bytes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "files": self.files,
            "bytes_read": self.bytes_read,
            "delete_rows": self.delete_rows,
            "snapshots": self.snapshots,
            "manifests": self.manifests,
            "metadata_bytes": self.metadata_bytes,
            "is_due": self.is_due,
            "reason": self.reason,
            "is_available": self.is_available,
        }

    def __str__(self) -> str:
        parts = [
            counted(self.files, "file") + " fewer" if self.files else "",
            counted(self.delete_rows, "deleted row") + " less to apply" if self.delete_rows else "",
            counted(self.snapshots, "snapshot") + " fewer" if self.snapshots else "",
            counted(self.manifests, "manifest") + " fewer" if self.manifests else "",
            f"{self.metadata_bytes} bytes of metadata less" if self.metadata_bytes else "",
        ]
        return ", ".join(each for each in parts if each) or "nothing"


@dataclass(frozen=True, slots=True)
class Advice:
    """A table's health, and what each service would save."""

    table: str
    mode: str
    health: TableHealth
    savings: tuple[Saving, ...]

    @property
    def due(self) -> tuple[Saving, ...]:
        return tuple(each for each in self.savings if each.is_due)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "mode": self.mode,
            "health": self.health.to_dict(),
            "savings": [each.to_dict() for each in self.savings],
        }

    def __str__(self) -> str:
        lines = [f"{each.service}: {each}{f' (due: {each.reason})' if each.is_due else ''}" for each in self.savings]
        return "\n".join([f"{self.table}, services {self.mode}", *lines])


def advise(catalog: Catalog, storage: Storage, ident: Ident, table: object) -> Advice:
    """``table``: whose methods say which services there are."""
    head = catalog.load(ident)
    metadata = head.metadata
    last = () if catalog.timeline is None else catalog.timeline.find(metadata.uuid, _LAST_ACTIONS)
    health = health_of(storage, metadata, head.now_ms)
    due = policy.due(health, metadata.properties, head.now_ms, last)
    mode = policy.mode_of(metadata)
    return Advice(str(ident), str(mode), health, tuple(_savings(health, metadata, due, table)))


def _savings(health: TableHealth, metadata: TableMetadata, due: Iterable[Due], table: object) -> Iterable[Saving]:
    reasons = {each.service: each.reason for each in due}
    for service in SERVICES:
        numbers = _numbers(service.name, health, metadata)
        if numbers is None:
            continue
        yield Saving(
            service.name,
            **numbers,
            is_due=service.name in reasons,
            reason=reasons.get(service.name, ""),
            is_available=service.method_of(table) is not None,
        )


def _numbers(service: str, health: TableHealth, metadata: TableMetadata) -> dict[str, int] | None:
    """None: what it would save is not known without listing files."""
    match service:
        case policy.COMPACT:
            deletes = health.position_delete_files + health.equality_delete_files
            return {
                "files": health.small_files - health.files_instead + deletes,
                "bytes_read": health.data_bytes + health.delete_bytes if deletes else health.small_bytes,
                "delete_rows": health.position_deletes + health.equality_deletes,
            }
        case policy.RESOLVE:
            return {"files": health.equality_delete_files, "delete_rows": health.equality_deletes}
        case policy.REWRITE_DELETES:
            return {
                "files": max(0, health.position_delete_files - min(health.data_files, health.position_delete_files))
            }
        case policy.EXPIRE:
            each = health.metadata_bytes // health.snapshots if health.snapshots else 0
            return {"snapshots": health.expired_snapshots, "metadata_bytes": each * health.expired_snapshots}
        case policy.MANIFESTS:
            text = metadata.properties.get(_MANIFEST_BYTES, "")
            target = int(text) if text.isdigit() and int(text) else _DEFAULT_MANIFEST_BYTES
            # Data and deletes have manifests of their own.
            return {"manifests": max(0, health.manifests - max(2, -(-health.manifest_bytes // target)))}
        case _:
            return None
