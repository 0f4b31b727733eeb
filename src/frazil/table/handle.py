"""The methods of a table, the same outside and inside a transaction. The work is in the modules that they call."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from frazil.catalog import records
from frazil.commit.retry import Retry
from frazil.dml.merge import Merge, checked_on
from frazil.format.evolution import Name
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.storage import Storage
from frazil.format.times import Moment
from frazil.model import Commit, Snapshot
from frazil.read.changes import Changes
from frazil.read.scan import Scan, ScannedFile
from frazil.services.compaction import CompactionPlan
from frazil.services.context import OnDeletion
from frazil.services.leases import Claim
from frazil.services.orphans import OrphanReport
from frazil.services.progress import ServiceProgress
from frazil.table import changes, reads, services, upkeep, writes
from frazil.table.begin import begin
from frazil.table.call import Build, Call, Statement
from frazil.table.destination import Destination
from frazil.table.merge import MergeBuilder
from frazil.table.options import Mode, UpsertMode, WriteOptions
from frazil.table.reads import HistoryEntry, PartitionEntry
from frazil.table.source import Source

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortOrder


class TableHandle:
    """A table over a destination, which decides what becomes of its writes and which version it reads.

    Every method that changes metadata takes ``retry`` and ``commit_id``, which makes it idempotent: sent again, it is
    found, not applied twice. Columns inside structs are named ``"a.b"``, also through lists and maps
    (``"tags.element.x"`` or ``"tags.x"``); a name that contains a dot goes in back-ticks. Upper and lower case are the
    same where that is not ambiguous.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    @property
    def name(self) -> str:
        return str(self._source.ident)

    # Writing

    def append(self, rows: object, **options: Unpack[WriteOptions]) -> Commit:
        """Add rows: a Spark DataFrame, an Arrow table, reader or dataset, anything with ``__arrow_c_stream__``
        (polars, pandas, duckdb), dicts, or an iterator of dicts or batches.

        Appends commute: any number of them land, in some order. At serializable isolation, a concurrent delete whose
        condition matches some of the rows aborts the append; ``on_deleted`` changes that.
        """
        return writes.append(self._destination, rows, options)

    def add_files(self, paths: Sequence[str], **options: Unpack[WriteOptions]) -> Commit:
        """Add existing Parquet files where they are, without copying: their rows are in the table from then on.

        Columns are found by field ids, or by name where a file has none; each must be in the table, with the same type
        or one that Iceberg promotes to it. In a partitioned table the footer of each file must show one partition. A
        failure deletes none of the files; ``drop_table(purge=True)`` does, as they belong to the table.
        """
        return writes.add_files(self._destination, paths, options)

    def overwrite(
        self,
        rows: object,
        where: str,
        *,
        params: Mapping[str, object] | None = None,
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Replace the rows that match ``where`` by these, each of which must match it as well.

        ``where="true"`` replaces the whole table. Files that match only in part are copied without the matching rows.
        """
        return writes.overwrite(self._destination, rows, where, case_sensitive, options, params)

    def replace_partitions(self, rows: object, **options: Unpack[WriteOptions]) -> Commit:
        """Replace every partition that these rows belong to."""
        return writes.replace_partitions(self._destination, rows, options)

    def delete(
        self,
        where: str,
        *,
        params: Mapping[str, object] | None = None,
        mode: Mode | None = None,
        on_added: Literal["abort", "include"] | None = None,
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Delete the rows that match ``where``, with the values of its ``:name`` in ``params``.

        Whole files are deleted by metadata alone; in files that match in part, rows are marked as deleted
        (merge-on-read) or the rest is copied (copy-on-write, the default), as the table's write.delete.mode says. At
        serializable isolation, matching rows that were added concurrently are deleted as well;
        ``on_conflict="abort"`` raises ConflictError instead. ``on_added="abort"`` and ``"include"`` are earlier names
        of ``on_conflict="abort"`` and ``"redo"``.
        """
        return writes.delete(self._destination, where, mode, on_added, case_sensitive, options, params)

    def update(
        self,
        set: Mapping[str, object],  # noqa: A002 - SQL's word, and the surface is fixed
        where: str = "true",
        *,
        params: Mapping[str, object] | None = None,
        mode: Mode | None = None,
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Change columns of the rows that match ``where``.

        Strings in ``set`` are SQL expressions over the row's old values (``{"status": "'gone'", "n": "n + 1"}``); other
        Python values and ``frazil.lit(x)`` are constants.
        """
        return writes.update(self._destination, set, where, mode, case_sensitive, options, params)

    def upsert(
        self,
        rows: object,
        *,
        on: Sequence[str] | None = None,
        latest_by: str | None = None,
        mode: UpsertMode | None = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Insert rows by the table's keys: a row whose key is already in the table replaces the old row.

        ``on`` names other columns instead of the keys. ``latest_by`` names a column: of several rows of one key the one
        with the greatest value wins, and a row that is older than the table's is not applied.

        By default ("equality") nothing is read: two upserts of one key both land and the later one wins, and engines
        must be able to read equality deletes (PyIceberg is not). "position" and "copy-on-write" find the old rows, can
        be read by every engine, and conflict with other writers of the same keys.
        """
        return writes.upsert(self._destination, rows, mode, options, on, latest_by)

    def delete_keys(
        self,
        rows: object,
        on: Sequence[str] | None = None,
        *,
        mode: UpsertMode | None = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Delete every row with one of these keys. ``rows`` have the key columns, or those that ``on`` names.

        By the table's keys nothing is read and nothing counted ("equality"), as in ``upsert``; by other columns, and in
        the other modes, the rows are searched.
        """
        return writes.delete_keys(self._destination, rows, on, mode, options)

    def merge(
        self,
        source: object,
        on: object = None,
        *,
        source_alias: str | None = None,
        target_alias: str = "target",
        mode: Mode | None = None,
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> MergeBuilder:
        """Merge a source into the table: ``merge(df, on="target.id = source.id").when_…(…).execute()``.

        ``on`` may also be a list of columns that both have; None means the table's keys. Strings are SQL, over the
        columns of ``source`` and ``target`` (or what the aliases say); Spark Columns are used as they are.
        """
        plan = Merge(checked_on(on, self.keys), (), source_alias or "source", target_alias, case_sensitive)
        run = partial(writes.merge, self._destination, source, mode, options)
        return MergeBuilder(plan, run, partial(writes.explain_merge, self._destination, source, options))

    def row_delta(
        self,
        rows: object = None,
        *,
        positions: Mapping[str, Sequence[int]] | None = None,
        keys: object = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Add rows and delete others, named by data file and position or by key, in one snapshot.

        For engines that have found the rows themselves. ``keys`` are rows with the table's key columns.
        """
        return writes.row_delta(self._destination, rows, positions, keys, options)

    def compact(
        self,
        where: str | None = None,
        *,
        strategy: Literal["binpack", "sort", "zorder", "hilbert"] = "binpack",
        by: Sequence[str] | None = None,
        progress: ServiceProgress | None = None,
        claim: Claim | None = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Rewrite files without deleted rows: small ones into larger ones ("binpack"), or sorted.

        "sort" orders the rows of each partition by the terms of ``by`` (``["ts desc nulls last", "id"]``) or the
        table's sort order; "zorder" and "hilbert" keep rows together that are near in several columns, of any type.
        ``where`` selects files by their statistics. ``options`` are those of Iceberg's rewrite_data_files.

        Concurrent deletes and updates of the rewritten rows apply to the output. Large tables are committed group by
        group: of several commits the last one is returned, with the counts of all. ``progress`` is told of each;
        ``claim`` is asked for each group, and leaves it to another service by False.
        """
        return services.compact(self._destination, where, strategy, by, options, progress, claim)

    def compaction_plan(
        self,
        where: str | None = None,
        *,
        strategy: Literal["binpack", "sort", "zorder", "hilbert"] = "binpack",
        by: Sequence[str] | None = None,
        **options: Unpack[WriteOptions],
    ) -> CompactionPlan:
        """What ``compact()`` would do now: its groups of files, commit by commit. Nothing is written."""
        return services.compaction_plan(self._destination, where, strategy, by, options)

    def resolve_deletes(
        self, where: str | None = None, *, progress: ServiceProgress | None = None, **options: Unpack[WriteOptions]
    ) -> Commit:
        """Turn equality deletes, which upserts write, into position deletes. Every engine can read the table then.

        Only files that a key may be in, by partition and bounds, are read. ``where`` selects data files by their
        statistics; an equality delete that may reach others stays. Concurrent writers do not conflict with it.
        """
        return services.resolve_deletes(self._destination, where, options, progress)

    def rewrite_position_deletes(
        self, where: str | None = None, *, progress: ServiceProgress | None = None, **options: Unpack[WriteOptions]
    ) -> Commit:
        """Put the position deletes of each data file into one file, and remove delete files that apply to nothing.

        Data files with one delete file of their own stay as they are. Options: ``min-input-files`` (2: how many delete
        files a data file must have) and ``rewrite-all``.
        """
        return services.rewrite_position_deletes(self._destination, where, options, progress)

    def rewrite_manifests(
        self,
        *,
        spec_id: int | None = None,
        sort_by: Sequence[str] = (),
        progress: ServiceProgress | None = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Cluster the manifests by partition and give them the size ``commit.manifest.target-size-bytes``, so that
        scans read fewer of them. Data files stay as they are, and concurrent appends do not conflict.

        ``sort_by``: partition fields to cluster by first. ``spec_id``: only manifests of one partition spec.
        """
        return services.rewrite_manifests(self._destination, spec_id, sort_by, options, progress)

    def cherry_pick(self, snapshot: int, **options: Unpack[WriteOptions]) -> Commit:
        """Repeat, on top of the newest rows, what one snapshot of another branch did. No file is written for it."""
        return writes.cherry_pick(self._destination, snapshot, options)

    # Columns

    def add_column(
        self,
        name: Name,
        type: object,  # noqa: A002 - as people say it
        *,
        after: Name | None = None,
        first: bool = False,
        doc: str | None = None,
        required: bool = False,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Add an optional column, last unless ``first`` or ``after`` another. Its type: Spark DDL, Arrow, PyIceberg.

        If the column exists with this type, nothing changes; with another type it is refused. Different columns
        commute.
        """
        change = changes.add_column(name, type, after=after, first=first, doc=doc, required=required)
        return change.run(self._destination, retry, commit_id)

    def drop_column(self, *names: Name, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Drop columns. Files keep their values, which are no longer read; a new column of the name starts empty."""
        return changes.drop_column(names).run(self._destination, retry, commit_id)

    def rename_column(self, old: Name, new: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Rename a column inside its struct; ``new`` is the last part of the name alone."""
        return changes.rename_column(old, new).run(self._destination, retry, commit_id)

    def widen_column(
        self,
        name: Name,
        type: object,  # noqa: A002 - as people say it
        *,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Widen a column's type: int to long, float to double, decimals with more digits before the point."""
        return changes.widen_column(name, type).run(self._destination, retry, commit_id)

    def move_column(
        self,
        name: Name,
        *,
        first: bool = False,
        after: Name | None = None,
        before: Name | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Move a column among its siblings."""
        change = changes.move_column(name, first=first, after=after, before=before)
        return change.run(self._destination, retry, commit_id)

    def make_optional(self, name: Name, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Let a required column be null. ``require_column()`` takes it back while no row is."""
        return changes.make_optional(name).run(self._destination, retry, commit_id)

    def require_column(self, name: Name, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Make a column required. Refused, with a file as evidence, while a row of any branch is null in it.

        Statistics are checked first, and only files that may hold a null are opened. Nulls that are added concurrently
        are a conflict for one of the two. Snapshots that a rollback brings back are not checked.
        """
        return changes.require_column(name).run(self._destination, retry, commit_id)

    def set_column_doc(
        self, name: Name, doc: str | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set a column's comment; None removes it."""
        return changes.set_column_doc(name, doc).run(self._destination, retry, commit_id)

    def set_keys(
        self, names: Sequence[Name] | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set the columns that identify a row, for upserts. None or no names: no keys.

        They become required, with the check of ``require_column()``. No check is made that the keys are unique.
        """
        return changes.set_keys(names).run(self._destination, retry, commit_id)

    # Layout

    def set_partitioning(
        self, partition_by: Sequence[str] | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Partition new files by ``["day(ts)", "bucket(16, id)"]``; existing files stay as they are.

        None or no terms: new files are not partitioned.
        """
        return changes.set_partitioning(partition_by).run(self._destination, retry, commit_id)

    def set_sort_order(
        self, sort_by: Sequence[str] | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Sort the rows of new files by ``["ts desc", "id"]``; None or no terms: unsorted."""
        return changes.set_sort_order(sort_by).run(self._destination, retry, commit_id)

    # Properties

    def set_properties(
        self, properties: Mapping[str, str] | None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set table properties. Different keys commute; on one key the last writer wins. None: nothing changes."""
        return changes.set_properties(properties).run(self._destination, retry, commit_id)

    def remove_properties(self, *keys: str, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Remove table properties; keys that are not set are ignored."""
        return changes.remove_properties(keys).run(self._destination, retry, commit_id)

    # Snapshots, branches and tags

    def expire_snapshots(
        self,
        older_than: Moment | None = None,
        retain_last: int | None = None,
        *,
        delete_files: bool = True,
        dry_run: bool = False,
        retry: Retry | None = None,
        commit_id: str | None = None,
        on_phase: OnDeletion | None = None,
    ) -> Commit:
        """Expire snapshots older than a moment, and keep the last ``retain_last`` of every branch.

        Then the files are deleted that no snapshot, branch, tag, open transaction or queued commit needs, and metadata
        files older than ``frazil.retention.min-age-ms``; ``Commit.expired`` counts them. After a crash the next call
        goes on. By default the table's ``history.expire.*`` properties decide (5 days, 1 snapshot); a branch's or
        tag's own rule wins. A snapshot that a branch or a tag names when the commit lands is kept, whichever writer
        made the ref.
        """
        return upkeep.expire_snapshots(
            self._destination,
            older_than,
            retain_last,
            delete_files=delete_files,
            dry_run=dry_run,
            retry=retry,
            commit_id=commit_id,
            on_phase=on_phase,
        )

    def remove_orphans(
        self,
        older_than: dt.timedelta | Moment = dt.timedelta(days=3),
        *,
        dry_run: bool = True,
        location: str | None = None,
        on_phase: OnDeletion | None = None,
    ) -> OrphanReport:
        """Find files below the table's location that nothing names, older than ``older_than``; delete them with
        ``dry_run=False``.

        Needed is what any table of the lake names in a snapshot or its metadata log, what queued commits name, and what
        a live writer has been staging. Ages are by the store's clock. A location that holds files of a table that this
        lake does not know is refused. A shorter age than the table's ``frazil.orphans.grace-ms`` becomes that property,
        so that every writer checks its files before it commits them.
        """
        return upkeep.remove_orphans(
            self._destination, older_than, dry_run=dry_run, location=location, on_phase=on_phase
        )

    def create_branch(
        self,
        name: str,
        snapshot: int | str | None = None,
        *,
        max_ref_age_ms: int | None = None,
        max_snapshot_age_ms: int | None = None,
        min_snapshots_to_keep: int | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Start a branch at a snapshot, or where another branch or tag is; by default at the head of main."""
        retention = {
            "max_ref_age_ms": max_ref_age_ms,
            "max_snapshot_age_ms": max_snapshot_age_ms,
            "min_snapshots_to_keep": min_snapshots_to_keep,
        }
        return changes.create_branch(name, snapshot, retention).run(self._destination, retry, commit_id)

    def create_tag(
        self,
        name: str,
        snapshot: int | str | None = None,
        *,
        max_ref_age_ms: int | None = None,
        retry: Retry | None = None,
        commit_id: str | None = None,
    ) -> Commit:
        """Name a snapshot, by default the head of main."""
        return changes.create_tag(name, snapshot, max_ref_age_ms).run(self._destination, retry, commit_id)

    def drop_branch(self, name: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        """Drop a branch. If another writer commits to it concurrently, it stays, and this is a ConflictError."""
        return changes.drop_branch(name).run(self._destination, retry, commit_id)

    def drop_tag(self, name: str, *, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        return changes.drop_tag(name).run(self._destination, retry, commit_id)

    def fast_forward(
        self, branch: str, to: int | str, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Move a branch forward to a descendant of its head, such as main to an audited branch.

        A concurrent commit to ``branch`` makes it a ConflictError: nothing is overwritten.
        """
        return changes.fast_forward(branch, to).run(self._destination, retry, commit_id)

    def rollback_to(
        self, snapshot: int | str, *, branch: str = MAIN, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Move a branch back to an earlier snapshot of its own history, named by its id or by a tag.

        A concurrent commit to the branch makes it a ConflictError: rows that the caller has not seen stay.
        """
        return changes.rollback_to(snapshot, branch).run(self._destination, retry, commit_id)

    def set_current_snapshot(
        self, snapshot: int | str, *, branch: str = MAIN, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Move a branch to any snapshot of the table, also one outside its history."""
        return changes.set_current_snapshot(snapshot, branch).run(self._destination, retry, commit_id)

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
        params: Mapping[str, object] | None = None,
    ) -> Scan:
        """Rows of one snapshot, pinned now. ``where`` is a Spark SQL expression; put filters here, they prune files.

        ``:name`` in it is a parameter, whose value is in ``params``.
        """
        return reads.scan(
            self._source,
            where,
            columns,
            snapshot=snapshot,
            as_of=as_of,
            ref=ref,
            limit=limit,
            case_sensitive=case_sensitive,
            params=params,
        )

    def changes(self, since: Moment | None, until: Moment | None = None) -> Changes:
        """The rows that were added and removed after the snapshot ``since``, up to and including ``until``.

        Both are snapshot ids, or times: the snapshot that was current then. ``until=None`` means the newest,
        ``since=None`` an empty table: the rows of the oldest snapshot that is still kept come first. Compactions change
        no rows. A row with new values is removed and added; a row that was copied unchanged is neither.
        """
        return reads.changes(self._source, since, until)

    def history(self) -> list[HistoryEntry]:
        """Every snapshot still kept, oldest first."""
        return reads.history(self._source)

    def snapshot(self, ref: str = MAIN) -> Snapshot | None:
        """The newest snapshot of a branch (or the one a tag names); None while the table is empty."""
        return self._metadata().head_snapshot(ref)

    current_snapshot = snapshot

    def files(self) -> list[ScannedFile]:
        """The live data files of the current snapshot."""
        return self.scan().files()

    def partitions(self) -> list[PartitionEntry]:
        """The partitions of the current snapshot, with their files, rows and bytes."""
        return reads.partitions(self.files())

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
        """The identifier columns. They are not a constraint: append() does not check for duplicates."""
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

    # For other parts of the package

    @property
    def _source(self) -> Source:
        return self._destination.source

    @property
    def _storage(self) -> Storage:
        return self._source.lake.storage

    def _metadata(self) -> TableMetadata:
        return self._source.metadata()

    def _begin(self, verb: str, options: WriteOptions, parameters: Mapping[str, object]) -> Call:
        """The call of a verb whose files are staged elsewhere."""
        return begin(self._destination, verb, options, parameters)

    def _run(self, call: Call, build: Build) -> Commit:
        return self._destination.run(Statement(call, build))
