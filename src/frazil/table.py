"""A table as the user holds it. It is a name: every call reads the head; only a Scan pins a snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from frazil.catalog import records
from frazil.commit.loop import Identity, OnPhase, commit, find_commit
from frazil.commit.operations import MetadataChange, Operation, Write, digest
from frazil.commit.retry import Retry, from_properties
from frazil.errors import InvalidInput
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Commit, Ident, Snapshot
from frazil.read.scan import ScannedFile
from frazil.runtime import Runtime
from frazil.verbs import Call, Verbs

if TYPE_CHECKING:
    from frazil.lake import Lake


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One snapshot of a table, in the order the branch got them."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    committed_at: dt.datetime
    operation: str
    summary: Mapping[str, str]
    is_current_ancestor: bool
    """False: a rollback or another branch left this snapshot outside the branch's history."""


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """One partition of a table."""

    partition: dict[str, Any]
    files: int
    rows: int
    """As the files have them, rows that delete files take out included."""
    bytes: int


class Table(Verbs):
    """A table of a lake. Safe to share between threads; pickles as a name that opens its lake again."""

    def __init__(self, lake: Lake, ident: Ident) -> None:
        self._lake = lake
        self._ident = ident

    @property
    def name(self) -> str:
        return str(self._ident)

    def __repr__(self) -> str:
        return f"Table({self.name!r} in {self._lake.uri})"

    # Reading

    def history(self) -> list[HistoryEntry]:
        """Every snapshot still kept, oldest first."""
        metadata = self._metadata()
        current = {each.snapshot_id for each in metadata.ancestors(metadata.ref_snapshot_id(MAIN))}
        return [
            HistoryEntry(
                snapshot_id=each.snapshot_id,
                parent_snapshot_id=each.parent_snapshot_id,
                sequence_number=each.sequence_number,
                committed_at=dt.datetime.fromtimestamp(each.timestamp_ms / 1000, tz=dt.UTC),
                operation=each.operation,
                summary=dict(each.summary),
                is_current_ancestor=each.snapshot_id in current,
            )
            for each in metadata.snapshots()
        ]

    def snapshot(self, ref: str = MAIN) -> Snapshot | None:
        """The newest snapshot of a branch (or the one a tag names); None while the table is empty."""
        return self._metadata().head_snapshot(ref)

    current_snapshot = snapshot

    def files(self) -> list[ScannedFile]:
        """The live data files of the current snapshot."""
        return self.scan().files()

    def partitions(self) -> list[PartitionEntry]:
        """The partitions of the current snapshot with what is in them."""
        found: dict[tuple[tuple[str, Any], ...], list[ScannedFile]] = {}
        for file in self.files():
            found.setdefault(tuple(file.partition.items()), []).append(file)
        return [
            PartitionEntry(dict(key), len(files), sum(each.rows for each in files), sum(each.bytes for each in files))
            for key, files in found.items()
        ]

    @property
    def schema(self) -> Schema:
        """The current schema. Reads the head, as every property here does."""
        return self._metadata().schema()

    @property
    def spec(self) -> PartitionSpec:
        return self._metadata().spec()

    @property
    def sort_order(self) -> SortOrder:
        return self._metadata().sort_order()

    @property
    def keys(self) -> tuple[str, ...]:
        """The identifier columns. They are not a constraint: append() does not look for duplicates."""
        schema = self._metadata().schema()
        return tuple(schema.find_field(each).name for each in schema.identifier_field_ids)

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties, without those in which a foreign catalog keeps commit ids."""
        found = self._metadata().properties
        return {key: value for key, value in found.items() if not key.startswith(records.PROPERTY)}

    @property
    def refs(self) -> dict[str, dict[str, Any]]:
        """Branches and tags by name."""
        return {name: dict(ref) for name, ref in self._metadata().refs.items()}

    @property
    def location(self) -> str:
        return self._metadata().location

    @property
    def metadata_location(self) -> str:
        return self._lake.catalog.load(self._ident).location

    @property
    def uuid(self) -> str:
        return self._metadata().uuid

    @property
    def format_version(self) -> int:
        return self._metadata().format_version

    def pyiceberg(self) -> Any:
        """The same table as PyIceberg's, for everything that is not here yet."""
        return self._lake.pyiceberg().load_table((*self._ident.namespace, self._ident.name))

    # Inner workings

    @property
    def _storage(self) -> Storage:
        return self._lake.storage

    @property
    def _runtime(self) -> Runtime:
        return self._lake.runtime

    def _metadata(self) -> TableMetadata:
        return self._lake.catalog.load(self._ident).metadata

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        if commit_id is not None and (not isinstance(commit_id, str) or not commit_id.strip() or len(commit_id) > 200):
            raise InvalidInput(f"commit_id must be a text of 1 to 200 characters, not {commit_id!r}")
        return Identity(
            commit_id=commit_id if commit_id is not None else str(self._lake.runtime.new_uuid()),
            digest=digest(verb, **parameters),
            given=commit_id is not None,
        )

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:
        self._lake.check_writable()
        return find_commit(self._lake.catalog, metadata, identity, branch) if identity.given else None

    def _finish(self, call: Call, write: Write) -> Commit:
        before = () if write.is_empty else call.before
        done = self._commit([*before, write], call.identity, call.retry, call.on_phase)
        return replace(done, elapsed=self._lake.runtime.monotonic() - call.started)

    def _prepare(self, call: Call, change: MetadataChange) -> TableMetadata:
        self._commit([change], self._identity(None, change.name), call.retry, None)
        return self._metadata()

    def _change(self, change: MetadataChange, identity: Identity, base: TableMetadata, retry: Retry | None) -> Commit:
        return self._commit([change], identity, retry or _default_retry(base), None)

    def _commit(
        self, operations: Sequence[Operation], identity: Identity, retry: Retry, on_phase: OnPhase | None
    ) -> Commit:
        return commit(self._lake.commit_context(self._ident, on_phase), operations, identity, retry)


def _default_retry(metadata: TableMetadata) -> Retry:
    # A bad commit.retry.* property must not stop the very change that sets it right.
    try:
        return from_properties(metadata.properties)
    except InvalidInput:
        return Retry()
