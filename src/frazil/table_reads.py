"""What one can see of a table: its rows, its history, its files and how it is laid out. Nothing here changes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from frazil import observe
from frazil.catalog import records
from frazil.commit.snapshot_layout import LINEAGE, VERB
from frazil.errors import CorruptMetadata
from frazil.expr import Filter, parse_filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.model import Lineage, SharedCommit, Snapshot
from frazil.on_spark.session import chosen as chosen_session
from frazil.read.changes import Changes, Moment, find_snapshot, steps_between
from frazil.read.scan import Scan, ScannedFile, resolve_snapshot
from frazil.stage.lineage import read_lineage


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
    commits: tuple[SharedCommit, ...] = ()
    """Whose rows it brought: several where writers share it. Empty: another engine's, or nobody knows any more."""


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """One partition of a table."""

    partition: dict[str, Any]
    files: int
    rows: int
    """As the files have them, rows that delete files take out included."""
    bytes: int


def commits_in(snapshot: Snapshot) -> tuple[SharedCommit, ...]:
    """The commit that a snapshot of its own names."""
    commit_id = snapshot.summary.get(records.COMMIT_ID)
    if commit_id is None:
        return ()
    rows, files = (int(snapshot.summary.get(key, "0")) for key in ("added-records", "added-data-files"))
    return (SharedCommit(commit_id, rows, files),)


class TableReads:
    """Reading, over whatever holds a table."""

    # What a holder has to provide

    @property
    def name(self) -> str:
        raise NotImplementedError

    @property
    def _storage(self) -> Storage:
        raise NotImplementedError

    def _metadata(self) -> TableMetadata:
        raise NotImplementedError

    @property
    def _spark(self) -> Any:
        """The Spark session that the lake is bound to; None: it is bound to none."""
        raise NotImplementedError

    def _to_spark(self, scan: Scan, given: Any) -> Any:
        from frazil.on_spark.scan import scan_to_spark

        return scan_to_spark(scan, chosen_session(given, self._spark))

    def _changes_to_spark(self, changes: Changes, given: Any) -> Any:
        from frazil.on_spark.changelog import changes_to_spark

        return changes_to_spark(changes, chosen_session(given, self._spark))

    def _lineage_of(self, snapshot: Snapshot) -> Lineage | None:
        path = snapshot.summary.get(LINEAGE)
        if path is None:
            # Ours says so when it copied rows; another engine's says nothing.
            return Lineage() if VERB in snapshot.summary else None
        try:
            return read_lineage(self._storage, path)
        except CorruptMetadata:
            return None

    def _saw(self, where: Filter, branch: str) -> None:
        """A scan of the newest rows of a branch was made."""

    # Reading

    def scan(
        self,
        where: str | None = None,
        columns: list[str] | tuple[str, ...] | None = None,
        *,
        snapshot: int | None = None,
        as_of: dt.datetime | str | int | None = None,
        ref: str | None = None,
        limit: int | None = None,
        case_sensitive: bool = False,
    ) -> Scan:
        """Rows of one snapshot, pinned now. ``where`` is a Spark SQL expression; put filters here, they prune files."""
        observe.calling()
        metadata = self._metadata()
        pinned, schema = resolve_snapshot(metadata, snapshot=snapshot, as_of=as_of, ref=ref)
        condition = parse_filter(where, schema, case_sensitive=case_sensitive)
        branch = MAIN if ref is None else ref
        is_newest = snapshot is None and as_of is None and metadata.refs.get(branch, {}).get("type") != "tag"
        if is_newest:
            self._saw(condition, branch)
        scan = Scan(
            storage=self._storage,
            metadata=metadata,
            snapshot=pinned,
            schema=schema,
            filter=condition,
            columns=tuple(columns) if isinstance(columns, list) else columns,
            limit=limit,
            case_sensitive=case_sensitive,
            table=self.name,
            spark_reader=self._to_spark,
        )
        recorded: Scan = observe.scanned(self, scan, branch, is_historic=not is_newest)
        return recorded

    def changes(self, since: Moment | None, until: Moment | None = None) -> Changes:
        """The rows that came and went after the snapshot ``since``, up to and with ``until`` (by default the newest).

        Both are snapshot ids, or times: the snapshot that was current then. ``since=None`` begins with nothing: the
        rows of the oldest snapshot that is still kept come first. Compactions change no rows. A row with new values
        goes and comes again; a row that was copied as it was does neither.
        """
        metadata = self._metadata()
        head = metadata.head_snapshot(MAIN)
        if until is None:
            # What changed up to now is another way to read the rows of now.
            self._saw(parse_filter(None, metadata.schema()), MAIN)
        last = head if until is None else find_snapshot(metadata, until)
        return Changes(
            table=self.name,
            steps=steps_between(metadata, find_snapshot(metadata, since), last),
            columns=metadata.schema(),
            storage=self._storage,
            metadata=metadata,
            lineage_of=self._lineage_of,
            spark_reader=self._changes_to_spark,
        )

    def history(self) -> list[HistoryEntry]:
        """Every snapshot still kept, oldest first."""
        metadata = self._metadata()
        current = {each.snapshot_id for each in metadata.ancestors(metadata.ref_snapshot_id(MAIN))}
        shared = self._shared_commits(metadata)
        return [
            HistoryEntry(
                snapshot_id=each.snapshot_id,
                parent_snapshot_id=each.parent_snapshot_id,
                sequence_number=each.sequence_number,
                committed_at=dt.datetime.fromtimestamp(each.timestamp_ms / 1000, tz=dt.UTC),
                operation=each.operation,
                summary=dict(each.summary),
                is_current_ancestor=each.snapshot_id in current,
                commits=shared.get(each.snapshot_id) or commits_in(each),
            )
            for each in metadata.snapshots()
        ]

    def _shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:  # noqa: ARG002
        """By snapshot id, the commits that share a snapshot, as far as the catalog still knows them."""
        return {}

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
        return tuple(str(schema.find_column_name(each)) for each in schema.identifier_field_ids)

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
    def uuid(self) -> str:
        return self._metadata().uuid

    @property
    def format_version(self) -> int:
        return self._metadata().format_version
