"""Reads of a table: its rows, its history and its layout. Nothing here changes it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from frazil import observe
from frazil.catalog import records
from frazil.commit.origins import author_of
from frazil.commit.snapshot_layout import LINEAGE, VERB
from frazil.errors import CorruptMetadata
from frazil.expr import parse_filter, with_params
from frazil.format.metadata import MAIN
from frazil.format.storage import Storage
from frazil.model import Lineage, SharedCommit, Snapshot
from frazil.on_spark.session import chosen as chosen_session
from frazil.read.changes import Changes, Moment, find_snapshot, steps_between
from frazil.read.scan import Scan, ScannedFile, resolve_snapshot
from frazil.stage.lineage import read_lineage
from frazil.table.source import Source

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
    commits: tuple[SharedCommit, ...] = ()
    """The commits whose rows it holds: several where writers share it. Empty: another engine's, or no longer known."""
    app: str | None = None
    """The application that wrote it. None: not known, or those of ``commits`` are several."""
    host: str | None = None
    verb: str | None = None
    """The kind of the statement: append, update, merge, compact, …; of another engine's snapshot the operation."""


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """One partition of a table."""

    partition: dict[str, Any]
    files: int
    rows: int
    """In the data files, including rows that delete files remove."""
    bytes: int


def scan(
    source: Source,
    where: str | None,
    columns: list[str] | tuple[str, ...] | None,
    *,
    snapshot: int | None,
    as_of: dt.datetime | str | int | None,
    ref: str | None,
    limit: int | None,
    case_sensitive: bool,
    params: Mapping[str, object] | None = None,
) -> Scan:
    observe.calling()
    (where,) = with_params(params, where)
    metadata = source.metadata()
    pinned, schema = resolve_snapshot(metadata, snapshot=snapshot, as_of=as_of, ref=ref)
    condition = parse_filter(where, schema, case_sensitive=case_sensitive)
    branch = MAIN if ref is None else ref
    is_newest = snapshot is None and as_of is None and metadata.refs.get(branch, {}).get("type") != "tag"
    if is_newest:
        source.note_read(condition, branch)
    made = Scan(
        storage=source.lake.storage,
        metadata=metadata,
        snapshot=pinned,
        schema=schema,
        filter=condition,
        columns=tuple(columns) if isinstance(columns, list) else columns,
        limit=limit,
        case_sensitive=case_sensitive,
        table=str(source.ident),
        spark_reader=partial(_scan_to_spark, source.lake),
    )
    recorded: Scan = observe.scanned(source, made, branch, is_historic=not is_newest)
    return recorded


def changes(source: Source, since: Moment | None, until: Moment | None) -> Changes:
    metadata = source.metadata()
    head = metadata.head_snapshot(MAIN)
    if until is None:
        # Reading the changes up to the head reads the newest rows.
        source.note_read(parse_filter(None, metadata.schema()), MAIN)
    last = head if until is None else find_snapshot(metadata, until)
    return Changes(
        table=str(source.ident),
        steps=steps_between(metadata, find_snapshot(metadata, since), last),
        columns=metadata.schema(),
        storage=source.lake.storage,
        metadata=metadata,
        lineage_of=partial(_lineage_of, source.lake.storage),
        spark_reader=partial(_changes_to_spark, source.lake),
    )


def history(source: Source) -> list[HistoryEntry]:
    metadata = source.metadata()
    current = {each.snapshot_id for each in metadata.ancestors(metadata.ref_snapshot_id(MAIN))}
    shared = source.shared_commits(metadata)
    return [_entry(each, each.snapshot_id in current, shared.get(each.snapshot_id)) for each in metadata.snapshots()]


def _entry(snapshot: Snapshot, is_current: bool, shared: tuple[SharedCommit, ...] | None) -> HistoryEntry:
    author = author_of(snapshot)
    return HistoryEntry(
        snapshot_id=snapshot.snapshot_id,
        parent_snapshot_id=snapshot.parent_snapshot_id,
        sequence_number=snapshot.sequence_number,
        committed_at=dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=dt.UTC),
        operation=snapshot.operation,
        summary=dict(snapshot.summary),
        is_current_ancestor=is_current,
        commits=shared or commits_in(snapshot),
        app=author.app,
        host=author.host,
        verb=author.verb,
    )


def commits_in(snapshot: Snapshot) -> tuple[SharedCommit, ...]:
    """The commit that a snapshot's summary names; a shared snapshot names none."""
    commit_id = snapshot.summary.get(records.COMMIT_ID)
    if commit_id is None:
        return ()
    rows, files = (int(snapshot.summary.get(key, "0")) for key in ("added-records", "added-data-files"))
    return (SharedCommit(commit_id, rows, files, author_of(snapshot).origin),)


def partitions(files: list[ScannedFile]) -> list[PartitionEntry]:
    found: dict[tuple[tuple[str, Any], ...], list[ScannedFile]] = {}
    for file in files:
        found.setdefault(tuple(file.partition.items()), []).append(file)
    return [
        PartitionEntry(dict(key), len(files), sum(each.rows for each in files), sum(each.bytes for each in files))
        for key, files in found.items()
    ]


def _scan_to_spark(lake: Lake, scan: Scan, given: Any) -> Any:
    from frazil.on_spark.scan import scan_to_spark

    return scan_to_spark(scan, chosen_session(given, lake.spark))


def _changes_to_spark(lake: Lake, changes: Changes, given: Any) -> Any:
    from frazil.on_spark.changelog import changes_to_spark

    return changes_to_spark(changes, chosen_session(given, lake.spark))


def _lineage_of(storage: Storage, snapshot: Snapshot) -> Lineage | None:
    path = snapshot.summary.get(LINEAGE)
    if path is None:
        # A Frazil snapshot without a sidecar copied no rows; of another engine's snapshot this is not known.
        return Lineage() if VERB in snapshot.summary else None
    try:
        return read_lineage(storage, path)
    except CorruptMetadata:
        return None
