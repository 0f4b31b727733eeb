"""A table as the user holds it. It is a name: every call reads the head; only a Scan pins a snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sized
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder

from frazil.catalog import records
from frazil.commit import operations
from frazil.commit.conflicts import Check, conflict
from frazil.commit.loop import CommitContext, Identity, OnPhase, commit, find_commit
from frazil.commit.operations import Append, MetadataChange, NewRef, Operation, PropertyChange, SchemaUnion
from frazil.commit.retry import Retry, from_properties
from frazil.errors import InvalidInput, Unsupported
from frazil.format.filters import parse_filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.properties import checked_properties
from frazil.format.schemas import evolve
from frazil.model import Commit, Ident, Isolation, Snapshot
from frazil.read.scan import Scan, resolve_snapshot
from frazil.stage.arrow import StagedFiles, stage
from frazil.stage.rows import conform, incoming_schema, opened, to_reader, without_untyped

if TYPE_CHECKING:
    from frazil.lake import Lake

Engine = Literal["spark", "arrow"]
OnDeleted = Literal["abort", "keep", "drop"]

# Keys of a snapshot's summary that are Iceberg's or ours, and prefixes of table properties put there by mistake.
_RESERVED_SUMMARY = ("operation", "added-", "deleted-", "removed-", "total-", "changed-partition-count", "frazil.")
_TABLE_PROPERTY_PREFIXES = ("write.", "read.", "commit.", "history.", "schema.")


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


class Table:
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
        metadata = self._metadata()
        pinned, schema = resolve_snapshot(metadata, snapshot=snapshot, as_of=as_of, ref=ref)
        return Scan(
            storage=self._lake.storage,
            metadata=metadata,
            snapshot=pinned,
            schema=schema,
            filter=parse_filter(where, schema, case_sensitive=case_sensitive),
            columns=tuple(columns) if isinstance(columns, list) else columns,
            limit=limit,
            case_sensitive=case_sensitive,
            table=self.name,
        )

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

    def files(self) -> Any:
        """The live data files of the current snapshot."""
        return self.scan().files()

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

    # Writing

    def append(
        self,
        rows: object,
        *,
        isolation: str = Isolation.SERIALIZABLE,
        retry: Retry | None = None,
        commit_id: str | None = None,
        branch: str = MAIN,
        snapshot_properties: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None,
        merge_schema: bool = False,
        on_deleted: OnDeleted | None = None,
        own_snapshot: bool = False,  # noqa: ARG002 - nothing folds commits yet, so every snapshot is one's own
        dry_run: bool = False,
        engine: Engine | None = None,
        on_phase: OnPhase | None = None,
    ) -> Commit:
        """Add rows: an Arrow table or reader, anything with ``__arrow_c_stream__`` (polars, pandas, duckdb), or dicts.

        Appends commute: any number of them land, in some order. ``commit_id`` makes the call idempotent: sent again,
        also by another process after a crash, it is found and not applied twice.
        """
        self._lake.check_writable()
        _check_choices(isolation, engine, on_deleted, retry, branch)
        rows = opened(rows)
        properties = _checked_summary(snapshot_properties)
        metadata = self._metadata()
        self._check_branch(metadata, branch)
        # Before anything is written: a table property that is no number must not leave files behind.
        retry = from_properties(metadata.properties) if retry is None else retry
        identity = self._identity(commit_id, "append", branch=branch)
        if identity.given and (found := find_commit(self._lake.catalog, metadata, identity, branch)) is not None:
            return _same_rows(found, rows)
        if merge_schema:
            rows = without_untyped(rows, metadata.schema())
        if dry_run:
            return _dry_run(rows, metadata, identity, merge_schema=merge_schema)
        if merge_schema:
            metadata = self._merge_schema(rows, metadata, retry)
        started = self._lake.runtime.monotonic()
        staged = stage(
            rows,
            metadata=metadata,
            storage=self._lake.storage,
            runtime=self._lake.runtime,
            options=options or {},
        )
        operation = _append(staged, metadata, branch, properties)
        done = self._commit(operation, identity, retry, on_phase)
        return replace(done, elapsed=self._lake.runtime.monotonic() - started)

    def set_properties(
        self, properties: Mapping[str, str], *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Set table properties. Different keys commute; on one key the last writer wins."""
        updates = checked_properties(properties)
        if "format-version" in updates:
            raise Unsupported("The format version is not a property that can be set", advice="Tables are of version 2")
        return self._change(PropertyChange(updates=updates), "set_properties", retry, commit_id)

    def remove_properties(self, *keys: str, retry: Retry | None = None, commit_id: str | None = None) -> Commit:
        return self._change(PropertyChange(removals=keys), "remove_properties", retry, commit_id)

    def create_branch(
        self, name: str, snapshot: int | None = None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Start a branch at a snapshot, by default at the head of main."""
        return self._change(NewRef(name, "branch", snapshot), "create_branch", retry, commit_id)

    def create_tag(
        self, name: str, snapshot: int | None = None, *, retry: Retry | None = None, commit_id: str | None = None
    ) -> Commit:
        """Name a snapshot, by default the head of main."""
        return self._change(NewRef(name, "tag", snapshot), "create_tag", retry, commit_id)

    # Inner workings

    def _metadata(self) -> TableMetadata:
        return self._lake.catalog.load(self._ident).metadata

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        if commit_id is not None and (not isinstance(commit_id, str) or not commit_id.strip() or len(commit_id) > 200):
            raise InvalidInput(f"commit_id must be a text of 1 to 200 characters, not {commit_id!r}")
        return Identity(
            commit_id=commit_id if commit_id is not None else str(self._lake.runtime.new_uuid()),
            digest=operations.digest(verb, **parameters),
            given=commit_id is not None,
        )

    def _change(self, intent: operations.Intent, verb: str, retry: Retry | None, commit_id: str | None) -> Commit:
        self._lake.check_writable()
        metadata = self._metadata()
        identity = self._identity(commit_id, verb, intent=asdict(intent))
        return self._commit(MetadataChange(metadata.uuid, intent), identity, retry or _default_retry(metadata), None)

    def _merge_schema(self, rows: object, metadata: TableMetadata, retry: Retry) -> TableMetadata:
        if not isinstance(rows, pa.RecordBatchReader):
            # What would be refused later is refused now, while the table has its old schema. A stream is read once.
            _fitting_rows(rows, metadata, merge_schema=True)
        # Committed before any row is staged: staged files carry the ids that the catalog has confirmed (rule P16).
        change = MetadataChange(metadata.uuid, SchemaUnion(incoming_schema(rows, metadata.schema())))
        self._commit(change, self._identity(None, "merge_schema"), retry, None)
        return self._metadata()

    def _check_branch(self, metadata: TableMetadata, branch: str) -> None:
        probe = Append(metadata.uuid, (), metadata.current_schema_id, metadata.default_spec_id, {}, branch=branch)
        if (found := conflict(Check.BRANCH_EXISTS, probe, metadata)) is not None:
            raise InvalidInput(f"The table {self.name} has no branch {branch!r}", advice=found.advice)
        if metadata.refs.get(branch, {}).get("type") == "tag":
            raise InvalidInput(f"{branch!r} is a tag of {self.name}, and tags do not move", advice="Write to a branch")

    def _commit(
        self,
        operation: Operation,
        identity: Identity,
        retry: Retry,
        on_phase: OnPhase | None,
    ) -> Commit:
        ignore: Callable[..., None] = lambda _phase, _attempt: None  # noqa: E731
        context = CommitContext(
            catalog=self._lake.catalog,
            storage=self._lake.storage,
            ident=self._ident,
            runtime=self._lake.runtime,
            on_phase=on_phase or ignore,
        )
        return commit(context, operation, identity, retry)


def _append(
    staged: StagedFiles, metadata: TableMetadata, branch: str, snapshot_properties: Mapping[str, str]
) -> Append:
    schema = metadata.schema(staged.schema_id)
    return Append(
        table_uuid=metadata.uuid,
        files=staged.files,
        schema_id=staged.schema_id,
        spec_id=staged.spec_id,
        written_ids={field_id: str(schema.find_column_name(field_id)) for field_id in schema.field_ids},
        nullable_ids=_with_nulls(staged, schema),
        branch=branch,
        snapshot_properties=snapshot_properties,
    )


def _with_nulls(staged: StagedFiles, schema: Schema) -> frozenset[int]:
    """The optional columns in which some staged file has, or may have, a null."""
    optional = {field_id for field_id in schema.field_ids if schema.find_field(field_id).optional}
    return frozenset(
        field_id for field_id in optional if any(file.null_value_counts.get(field_id) != 0 for file in staged.files)
    )


def _same_rows(found: Commit, rows: object) -> Commit:
    """The earlier commit, unless this call plainly brings other rows. A stream of rows is not counted."""
    # A dict of columns has as many items as columns.
    count = len(rows) if isinstance(rows, Sized) and not isinstance(rows, Mapping) else found.rows_inserted
    if count != found.rows_inserted:
        raise InvalidInput(
            f"The commit id {found.commit_id!r} was already used on this table for {found.rows_inserted} rows, "
            f"and this call brings {count}",
            advice="A commit id names one write; repeat it only to repeat that write",
        )
    return found


def _default_retry(metadata: TableMetadata) -> Retry:
    # A bad commit.retry.* property must not stop the very change that sets it right.
    try:
        return from_properties(metadata.properties)
    except InvalidInput:
        return Retry()


def _fitting_rows(rows: object, metadata: TableMetadata, *, merge_schema: bool) -> int:
    """How many rows there are. Raises SchemaMismatch if one of them does not fit the schema, grown if so asked."""
    schema = metadata.schema()
    if merge_schema:
        evolved = evolve(schema, metadata.last_column_id, incoming_schema(rows, schema))
        schema = evolved[0] if evolved is not None else schema
    return sum(conform(batch, schema).num_rows for batch in to_reader(rows, schema))


def _dry_run(rows: object, metadata: TableMetadata, identity: Identity, *, merge_schema: bool) -> Commit:
    count = _fitting_rows(rows, metadata, merge_schema=merge_schema)
    return Commit(
        snapshot_id=metadata.ref_snapshot_id(MAIN),
        sequence_number=metadata.last_sequence_number,
        commit_id=identity.commit_id,
        attempts=0,
        changed=False,
        rows_inserted=count,
    )


def _check_choices(isolation: str, engine: str | None, on_deleted: str | None, retry: object, branch: object) -> None:
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry must be a frazil.Retry, not {retry!r}", advice="For instance frazil.Retry(tries=5)")
    if not isinstance(branch, str) or not branch:
        raise InvalidInput(f"branch must be the name of a branch, not {branch!r}")
    if isolation not in tuple(Isolation):
        raise InvalidInput(f"isolation must be 'serializable' or 'snapshot', not {isolation!r}")
    if engine not in (None, "arrow", "spark"):
        raise InvalidInput(f"engine must be 'arrow' or 'spark', not {engine!r}")
    if engine == "spark":
        raise Unsupported("Writing through Spark is not in this release", advice="Leave engine out to write Arrow rows")
    if on_deleted not in (None, "abort", "keep", "drop"):
        raise InvalidInput(f"on_deleted must be 'abort', 'keep' or 'drop', not {on_deleted!r}")
    if on_deleted in ("abort", "drop"):
        raise Unsupported(
            f"on_deleted={on_deleted!r} is not in this release",
            advice="Appended rows are kept, as on_deleted='keep' says",
        )


def _checked_summary(properties: Mapping[str, str] | None) -> Mapping[str, str]:
    if not isinstance(properties, Mapping | None):
        raise InvalidInput(f"snapshot_properties are a dict of texts, not {type(properties).__name__}")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"snapshot_properties are texts, and {key!r}: {value!r} is not")
        if key.startswith(_RESERVED_SUMMARY):
            raise InvalidInput(f"The snapshot property {key!r} is reserved", advice="Use a prefix of your own")
        if key.startswith(_TABLE_PROPERTY_PREFIXES):
            raise InvalidInput(
                f"{key!r} is a table property; in a snapshot's summary it would do nothing",
                advice="Use set_properties() for the table, or options={…} for one write",
            )
    return dict(properties or {})
