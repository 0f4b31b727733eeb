"""What one can do to a table. Each verb makes one operation and hands it down; a Table commits it at once, a
transaction keeps it until its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypedDict, Unpack

import pyarrow as pa

from frazil import observe
from frazil.commit.binding import make_schema_union
from frazil.commit.context import OnPhase
from frazil.commit.intents import Intent, UnpartitionedSpec
from frazil.commit.metadata_changes import metadata_change, pin
from frazil.commit.operations import Identity, MetadataChange, OnDeleted, Write
from frazil.commit.retry import Retry, from_properties
from frazil.dml.cherry_pick import cherry_pick
from frazil.dml.engine import ARROW, Engine, EngineName
from frazil.dml.merge import Merge, checked_on
from frazil.dml.row_delta import row_delta
from frazil.dml.upsert import key_spec
from frazil.dml.view import Settings, View
from frazil.errors import ConflictError, InvalidInput, Unsupported
from frazil.expr import Filter, parse_filter
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.schemas import evolve, suggestion
from frazil.format.updates import apply
from frazil.merging import MergeBuilder
from frazil.model import Commit, Isolation
from frazil.on_spark.session import active as active_session
from frazil.on_spark.session import checked as checked_session
from frazil.on_spark.session import is_frame, session_of
from frazil.runtime import Runtime
from frazil.stage.rows import opened
from frazil.table_changes import TableChanges

Mode = Literal["merge-on-read", "copy-on-write"]
UpsertMode = Literal["equality", "position", "copy-on-write"]
Build = Callable[[View, Settings], Write]

# Keys of a snapshot's summary that are Iceberg's or ours, and prefixes of table properties put there by mistake.
_RESERVED_SUMMARY = ("operation", "added-", "deleted-", "removed-", "total-", "changed-partition-count", "frazil.")
_TABLE_PROPERTY_PREFIXES = ("write.", "read.", "commit.", "history.", "schema.")
_WITHOUT_ROWS = ("delete", "update", "compact")
_MODES = ("merge-on-read", "copy-on-write")
_UPSERT_MODES = ("equality", "position", "copy-on-write")


class WriteOptions(TypedDict, total=False):
    """What every write takes."""

    isolation: str | None
    """"serializable" or "snapshot"; by default what the table's properties say, else serializable."""
    retry: Retry | None
    commit_id: str | None
    """Makes the call idempotent: sent again, also by another process after a crash, it is found, not applied twice."""
    branch: str
    snapshot_properties: Mapping[str, str] | None
    options: Mapping[str, str] | None
    merge_schema: bool
    on_deleted: OnDeleted | None
    """What becomes of appended rows that somebody deleted meanwhile: abort, keep or drop them."""
    own_snapshot: bool
    """Do not share a snapshot with others who append at the same moment."""
    dry_run: bool
    engine: EngineName | None
    on_phase: OnPhase | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a verb: what it works on, and how it is to be committed."""

    view: View
    settings: Settings
    identity: Identity
    retry: Retry
    on_phase: OnPhase | None
    merge_schema: bool
    dry_run: bool
    own_snapshot: bool = False
    before: tuple[MetadataChange, ...] = ()
    """Changes of the table that go into the same commit, ahead of the rows."""
    started: float = 0.0
    found: Commit | None = None
    """The earlier commit with the same id."""
    engine: Engine = ARROW

    def on(self, metadata: TableMetadata) -> Call:
        """The same call on a newer version of the table."""
        return replace(self, view=replace(self.view, metadata=metadata))

    def after(self, intent: Intent) -> Call:
        """The same call on the table as it is after a change, which is then committed with it."""
        metadata = self.view.metadata
        change = MetadataChange(metadata.uuid, pin(intent, metadata))
        updates, _ = metadata_change(change, metadata) or ((), ())
        later = apply(metadata, updates, now_ms=metadata.last_updated_ms, previous_location=None)
        return replace(self.on(later), before=(*self.before, change))

    def preview(self, inserted: int, updated: int = 0, deleted: int = 0) -> Commit:
        """What would be done, with nothing done."""
        metadata = self.view.metadata
        return Commit(
            snapshot_id=metadata.ref_snapshot_id(self.view.branch),
            sequence_number=metadata.last_sequence_number,
            commit_id=self.identity.commit_id,
            attempts=0,
            changed=False,
            rows_inserted=inserted,
            rows_updated=updated,
            rows_deleted=deleted,
            engine=self.engine.name,
        )


class Verbs(TableChanges):
    """The verbs, over whatever holds a table."""

    # What a holder has to provide

    _commits_at_once = True

    @property
    def _runtime(self) -> Runtime:
        raise NotImplementedError

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        raise NotImplementedError

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:
        """The earlier commit with this id."""
        raise NotImplementedError

    def _finish(self, call: Call, write: Write) -> Commit:
        """Commit the write, or keep it for later."""
        raise NotImplementedError

    def _prepare(self, call: Call, change: MetadataChange) -> TableMetadata:
        """Make a change to the table that must be there before rows are staged (rule P16)."""
        raise NotImplementedError

    # Writing

    def append(self, rows: object, **options: Unpack[WriteOptions]) -> Commit:
        """Add rows: a Spark DataFrame, an Arrow table or reader, anything with ``__arrow_c_stream__`` (polars, pandas,
        duckdb), or dicts.

        Appends commute: any number of them land, in some order. Rows that somebody deleted meanwhile, by a condition
        they match, abort the append at serializable isolation; ``on_deleted`` says otherwise.
        """
        rows = opened(rows)
        call = self._begin("append", options, {}, rows)
        if call.found is not None:
            # Rows that were dropped are not in the count.
            return call.found if call.settings.on_deleted == "drop" else _same_rows(call.found, rows)
        if call.merge_schema:
            rows = call.engine.without_untyped(rows, call.view.metadata.schema())
        if call.dry_run:
            return call.preview(_fitting_rows(rows, call))
        if call.merge_schema:
            if call.engine is ARROW and not isinstance(rows, pa.RecordBatchReader):
                # What would be refused later is refused now, while the table has its old schema.
                _fitting_rows(rows, call)
            call = self._grown(call, rows)
        return self._finish(call, call.engine.append(call.view, rows, call.settings))

    def overwrite(
        self, rows: object, where: str, *, case_sensitive: bool = False, **options: Unpack[WriteOptions]
    ) -> Commit:
        """Take out the rows that match ``where`` and put these in their place; each of them must match it, too.

        ``where="true"`` replaces the whole table. Files that match only in part are copied without the matching rows.
        """
        rows = opened(rows)
        call = self._begin("overwrite", options, {"where": where}, rows)
        condition = self._where(where, call, case_sensitive)
        if call.found is not None:
            return _same_rows(call.found, rows)
        return self._with_rows(
            call, rows, lambda rows: lambda view, settings: call.engine.overwrite(view, rows, condition, settings)
        )

    def replace_partitions(self, rows: object, **options: Unpack[WriteOptions]) -> Commit:
        """Empty every partition that these rows fall into, and fill it with them."""
        rows = opened(rows)
        call = self._begin("replace_partitions", options, {}, rows)
        if call.found is not None:
            return _same_rows(call.found, rows)
        return self._with_rows(
            call, rows, lambda rows: lambda view, settings: call.engine.replace_partitions(view, rows, settings)
        )

    def delete(
        self,
        where: str,
        *,
        mode: Mode | None = None,
        on_added: Literal["abort", "include"] = "abort",
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Take out the rows that match ``where``.

        Whole files go by metadata alone; in files that match in part, rows are marked as deleted (merge-on-read) or
        the rest is copied (copy-on-write, the default), as the table's write.delete.mode says. Matching rows that were
        added meanwhile abort it at serializable isolation. ``on_added="include"`` deletes them as well, where whole
        files go and nothing else.
        """
        if on_added not in ("abort", "include"):
            raise InvalidInput(f"on_added must be 'abort' or 'include', not {on_added!r}")
        call = self._begin("delete", options, {"where": where})
        condition = self._where(where, call, case_sensitive)
        if call.found is not None:
            return call.found
        chosen = _mode(mode, call.view.metadata, "write.delete.mode", _MODES, "copy-on-write")
        build: Build = lambda view, settings: call.engine.delete(view, condition, settings, chosen)  # noqa: E731
        return self._include_added(call, build) if on_added == "include" else self._build(call, build)

    def update(
        self,
        set: Mapping[str, object],  # noqa: A002 - SQL's word, and the surface is fixed
        where: str = "true",
        *,
        mode: Mode | None = None,
        case_sensitive: bool = False,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Change columns of the rows that match ``where``.

        Texts in ``set`` are SQL expressions over the row's old values (``{"status": "'gone'", "n": "n + 1"}``); other
        Python values and ``frazil.lit(x)`` are taken as they are.
        """
        shown = {str(name): repr(value) for name, value in set.items()} if isinstance(set, Mapping) else {}
        call = self._begin("update", options, {"where": where, "set": shown})
        condition = self._where(where, call, case_sensitive)
        if call.found is not None:
            return call.found
        chosen = _mode(mode, call.view.metadata, "write.update.mode", _MODES, "copy-on-write")
        return self._build(call, lambda view, settings: call.engine.update(view, set, condition, settings, chosen))

    def upsert(self, rows: object, *, mode: UpsertMode | None = None, **options: Unpack[WriteOptions]) -> Commit:
        """Put rows in by the table's keys: a row with a key that is already there replaces the old one.

        By default ("equality") nothing is read: two upserts of one key both land and the later one wins, and engines
        must be able to read equality deletes (PyIceberg is not). "position" and "copy-on-write" look for the old rows,
        can be read by everybody, and conflict with others who write the same keys.
        """
        rows = opened(rows)
        call = self._begin("upsert", options, {}, rows)
        if call.found is not None:
            return _same_rows(call.found, rows)
        chosen = _mode(mode, call.view.metadata, "frazil.upsert.mode", _UPSERT_MODES, "equality")
        return self._with_rows(
            call,
            rows,
            lambda rows: lambda view, settings: call.engine.upsert(view, rows, settings, chosen),
            by_key=chosen == "equality",
        )

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
        """Bring a source and the table together: ``merge(df, on="target.id = source.id").when_…(…).execute()``.

        ``on`` may also be a list of columns that both have; left out, it is the table's keys. Texts are SQL, over the
        columns of ``source`` and ``target`` (or what the aliases say); Spark Columns are taken as they are.
        """
        plan = Merge(checked_on(on, self.keys), (), source_alias or "source", target_alias, case_sensitive)
        run = partial(self._run_merge, source, mode, options)
        return MergeBuilder(plan, run, partial(self._explain_merge, source, options))

    def _run_merge(
        self, source: object, mode: Mode | None, options: WriteOptions, plan: Merge, evolves: bool
    ) -> Commit:
        rows = opened(source)
        shown = {"on": str(plan.on), "clauses": [str(each) for each in plan.clauses]}
        call = self._begin("merge", options, shown, rows, needs_spark=True)
        if call.found is not None:
            return call.found
        call = replace(call, merge_schema=call.merge_schema or evolves)
        chosen = _mode(mode, call.view.metadata, "write.merge.mode", _MODES, "copy-on-write")
        return self._with_rows(
            call, rows, lambda rows: lambda view, settings: call.engine.merge(view, rows, plan, settings, chosen)
        )

    def _explain_merge(self, source: object, options: WriteOptions, plan: Merge) -> str:
        call = self._begin("merge", options, {}, source, needs_spark=True)
        return call.engine.explain_merge(call.view, source, plan)

    def row_delta(
        self,
        rows: object = None,
        *,
        positions: Mapping[str, Sequence[int]] | None = None,
        keys: object = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Add rows and take out others, named by data file and position or by key, in one snapshot.

        For engines that have found the rows themselves. ``keys`` are rows with the table's key columns.
        """
        given = {"rows": rows is not None, "positions": positions is not None, "keys": keys is not None}
        call = self._begin("row_delta", options, given)
        if call.found is not None:
            return call.found if rows is None else _same_rows(call.found, rows)
        return self._with_rows(
            call, rows, lambda rows: partial(_row_delta, rows, positions, keys), by_key=keys is not None
        )

    def compact(
        self,
        where: str | None = None,
        *,
        strategy: Literal["binpack"] = "binpack",
        by: Sequence[str] | None = None,
        **options: Unpack[WriteOptions],
    ) -> Commit:
        """Put small files together, and leave deleted rows out. The rows stay the same, and so does their order.

        Whatever others delete meanwhile is deleted from its output, too, and their deletes and updates follow the rows
        into it.
        """
        if strategy != "binpack" or by is not None:
            raise Unsupported("compact() only bin-packs in this release", advice="Leave strategy and by out")
        call = self._begin("compact", options, {"where": where})
        condition = None if where is None else self._where(where, call, case_sensitive=False)
        if call.found is not None:
            return call.found
        return self._build(call, lambda view, settings: call.engine.compact(view, settings, condition))

    def cherry_pick(self, snapshot: int, **options: Unpack[WriteOptions]) -> Commit:
        """Do again, on top of the newest rows, what one snapshot of another branch did. No file is written for it."""
        if not self._commits_at_once:
            raise Unsupported("cherry_pick() inside a transaction is not in this release", advice="Call it by itself")
        call = self._begin("cherry_pick", options, {"snapshot": snapshot})
        if call.found is not None:
            return call.found
        return self._build(call, lambda view, settings: cherry_pick(view, snapshot, settings))

    # Inner workings

    def _where(self, where: str, call: Call, case_sensitive: bool) -> Filter:
        if where is None:
            raise InvalidInput("where is missing", advice='Write where="true" to mean every row')
        return parse_filter(where, call.view.metadata.schema(), case_sensitive=case_sensitive)

    def _with_rows(self, call: Call, rows: object, make: Callable[[object], Build], *, by_key: bool = False) -> Commit:
        """Build and commit a write of rows, on a table whose schema has their columns, if that was asked for."""
        if call.merge_schema and rows is not None:
            metadata = call.view.metadata
            rows = call.engine.without_untyped(rows, metadata.schema())
            tried = call.after(make_schema_union(metadata, call.engine.row_schema(rows, metadata.schema())))
            if call.dry_run:
                call = tried
            elif tried.view.metadata.current_schema_id != metadata.current_schema_id:
                if call.engine is ARROW and not isinstance(rows, pa.RecordBatchReader):
                    # What will be refused is refused while the table has its old schema. A stream is read only once.
                    self._try(tried, make(rows), by_key=by_key)
                call = self._grown(call, rows)
        return self._build(_reaching_keys(call, by_key), make(rows))

    def _grown(self, call: Call, rows: object) -> Call:
        """The call on the table with the columns of the rows.

        The columns are committed before any row is staged: files carry ids that the catalog has confirmed (rule P16).
        """
        metadata = call.view.metadata
        union = make_schema_union(metadata, call.engine.row_schema(rows, metadata.schema()))
        return call.on(self._prepare(call, MetadataChange(metadata.uuid, union)))

    def _try(self, call: Call, build: Build, *, by_key: bool) -> None:
        self._build(replace(_reaching_keys(call, by_key), dry_run=True), build)

    def _build(self, call: Call, build: Build) -> Commit:
        write = build(call.view, call.settings)
        if call.dry_run:
            self._storage.delete(write.staged_paths)
            return call.preview(write.rows.inserted, write.rows.updated, write.rows.deleted)
        return self._finish(call, write)

    def _include_added(self, call: Call, build: Build) -> Commit:
        """Evaluate a delete of whole files again on each head it meets, so that nothing added meanwhile is left."""
        if not self._commits_at_once:
            raise InvalidInput("on_added='include' evaluates a delete again, which a transaction cannot do")
        # Whatever the level: rows that were added meanwhile must be noticed to be included.
        call = replace(call, settings=replace(call.settings, isolation=Isolation.SERIALIZABLE))
        for left in reversed(range(call.retry.tries)):
            write = build(call.view, call.settings)
            if write.added or write.deletes:
                self._storage.delete(write.staged_paths)
                raise InvalidInput(
                    "on_added='include' is for deletes of whole files, and this one matches files in part",
                    advice="Leave on_added out, or delete by a condition on the partition columns",
                )
            if call.dry_run:
                break
            try:
                return self._finish(call, write)
            except ConflictError:
                if not left:
                    raise
                call = call.on(self._metadata())
        return call.preview(0, 0, write.rows.deleted)

    def _engine(self, asked: EngineName | None, rows: object, verb: str, *, needs_spark: bool) -> Engine:
        """Rows decide; a verb without rows runs on the session that the lake is bound to, else on Arrow."""
        frame = is_frame(rows)
        session = session_of(rows) if frame else None if self._spark is None else checked_session(self._spark)
        if asked == "arrow" and not frame:
            return ARROW
        if asked == "arrow":
            raise InvalidInput(
                "These rows are a Spark DataFrame, which engine='arrow' cannot take", advice="Pass frame.toArrow()"
            )
        wanted = asked == "spark" or frame or needs_spark or (session is not None and verb in _WITHOUT_ROWS)
        if not wanted:
            return ARROW
        if session is None:
            session = active_session()
        if session is None:
            if needs_spark and asked is None:
                return ARROW
            raise InvalidInput(
                f"{verb}() is to run on Spark, and the lake is bound to no session",
                advice="Say connect(…, spark=frazil.spark())",
            )
        from frazil.on_spark.dml import SparkEngine

        return SparkEngine(session)

    def _begin(
        self,
        verb: str,
        given: WriteOptions,
        parameters: Mapping[str, object],
        rows: object = None,
        *,
        needs_spark: bool = False,
    ) -> Call:
        """Check what every write takes, before anything is written."""
        observe.calling()
        started = self._runtime.monotonic()
        checked = _checked(given)
        engine = self._engine(checked.get("engine"), rows, verb, needs_spark=needs_spark)
        branch = checked.get("branch", MAIN)
        metadata = self._metadata()
        _check_branch(self.name, metadata, branch)
        isolation = _isolation(checked.get("isolation"), verb, metadata)
        # Before anything is written: a table property that is no number must not leave files behind.
        retry = checked.get("retry") or from_properties(metadata.properties)
        identity = self._identity(checked.get("commit_id"), verb, branch=branch, **parameters)
        settings = Settings(
            isolation=isolation,
            on_deleted=_on_deleted(checked.get("on_deleted"), verb, isolation),
            snapshot_properties=_checked_summary(checked.get("snapshot_properties")),
            options=dict(checked.get("options") or {}),
        )
        return Call(
            view=View(self._storage, self._runtime, metadata, branch, self.name),
            settings=settings,
            identity=identity,
            retry=retry,
            on_phase=checked.get("on_phase"),
            merge_schema=checked.get("merge_schema", False),
            dry_run=checked.get("dry_run", False),
            own_snapshot=checked.get("own_snapshot", False),
            started=started,
            found=self._find(identity, metadata, branch),
            engine=engine,
        )


def _row_delta(
    rows: object, positions: Mapping[str, Sequence[int]] | None, keys: object, view: View, settings: Settings
) -> Write:
    return row_delta(view, settings, rows=rows, positions=positions, keys=keys)


def _reaching_keys(call: Call, by_key: bool) -> Call:
    """Deletes by key reach every partition only from a spec without partitions (rule P21)."""
    if by_key and key_spec(call.view.metadata) is None:
        return call.after(UnpartitionedSpec())
    return call


def _same_rows(found: Commit, rows: object) -> Commit:
    """The earlier commit, unless this call plainly brings other rows. A stream of rows is not counted."""
    before = found.rows_inserted + found.rows_updated
    # A dict of columns has as many items as columns.
    count = len(rows) if isinstance(rows, Sized) and not isinstance(rows, Mapping) else before
    if count != before:
        raise InvalidInput(
            f"The commit id {found.commit_id!r} was already used on this table for {before} rows, "
            f"and this call brings {count}",
            advice="A commit id names one write; repeat it only to repeat that write",
        )
    return found


def _fitting_rows(rows: object, call: Call) -> int:
    """How many rows there are. Raises SchemaMismatch if one of them does not fit the schema, grown if so asked."""
    metadata = call.view.metadata
    schema = metadata.schema()
    if call.merge_schema:
        evolved = evolve(schema, metadata.last_column_id, call.engine.row_schema(rows, schema))
        schema = evolved[0] if evolved is not None else schema
    return call.engine.count_fitting(rows, schema)


def _checked(given: WriteOptions) -> WriteOptions:
    unknown = given.keys() - WriteOptions.__annotations__.keys()
    if unknown:
        name = min(unknown)
        raise InvalidInput(f"There is no option {name!r}", advice=suggestion(name, WriteOptions.__annotations__))
    retry, branch = given.get("retry"), given.get("branch", MAIN)
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidInput(f"retry must be a frazil.Retry, not {retry!r}", advice="For instance frazil.Retry(tries=5)")
    if not isinstance(branch, str) or not branch:
        raise InvalidInput(f"branch must be the name of a branch, not {branch!r}")
    for name in ("merge_schema", "dry_run", "own_snapshot"):
        if not isinstance(given.get(name, False), bool):
            raise InvalidInput(f"{name} must be True or False, not {given[name]!r}")  # type: ignore[literal-required]
    options, on_phase = given.get("options"), given.get("on_phase")
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise InvalidInput(f"options are a dict of texts, not {options!r}")
    if on_phase is not None and not callable(on_phase):
        raise InvalidInput(f"on_phase must be a function of a phase and an attempt, not {on_phase!r}")
    engine = given.get("engine")
    if engine not in (None, "arrow", "spark"):
        raise InvalidInput(f"engine must be 'arrow' or 'spark', not {engine!r}")
    return given


def _check_branch(table: str, metadata: TableMetadata, branch: str) -> None:
    if branch != MAIN and branch not in metadata.refs:
        raise InvalidInput(f"The table {table} has no branch {branch!r}", advice="Create it with create_branch()")
    if metadata.refs.get(branch, {}).get("type") == "tag":
        raise InvalidInput(f"{branch!r} is a tag of {table}, and tags do not move", advice="Write to a branch")


_ISOLATION_PROPERTY = {
    "delete": "write.delete.isolation-level",
    "update": "write.update.isolation-level",
    "upsert": "write.merge.isolation-level",
    "merge": "write.merge.isolation-level",
}


def _isolation(given: str | None, verb: str, metadata: TableMetadata) -> Isolation:
    """The argument, else the table's property for this verb, else serializable."""
    name = _ISOLATION_PROPERTY.get(verb, "")
    text = given if given is not None else metadata.properties.get(name, Isolation.SERIALIZABLE)
    if text not in tuple(Isolation):
        where = "isolation" if given is not None else f"The table property {name}"
        raise InvalidInput(f"{where} must be 'serializable' or 'snapshot', not {text!r}")
    return Isolation(text)


def _on_deleted(given: OnDeleted | None, verb: str, isolation: Isolation) -> OnDeleted:
    if given not in (None, "abort", "keep", "drop"):
        raise InvalidInput(f"on_deleted must be 'abort', 'keep' or 'drop', not {given!r}")
    if given is not None and given != "keep" and verb not in ("append", "upsert"):
        raise InvalidInput(f"on_deleted={given!r} is for appended rows; {verb} has none", advice="Leave it out")
    if given is not None:
        return given
    return "abort" if verb == "append" and isolation is Isolation.SERIALIZABLE else "keep"


def _mode(given: str | None, metadata: TableMetadata, name: str, known: Sequence[str], default: str) -> Any:
    chosen = given if given is not None else metadata.properties.get(name, default)
    if chosen not in known:
        where = "mode" if given is not None else f"The table property {name}"
        raise InvalidInput(f"{where} must be one of {', '.join(known)}, not {chosen!r}")
    return chosen


def _checked_summary(properties: Mapping[str, str] | None) -> Mapping[str, str]:
    if not isinstance(properties, Mapping | None):
        raise InvalidInput(f"snapshot_properties are a dict of texts, not {type(properties).__name__}")
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"snapshot_properties are texts, and {key!r}: {value!r} is not")
        if any("\ud800" <= char <= "\udfff" for char in key + value):
            raise InvalidInput(f"The snapshot property {key!r} holds half a character, which UTF-8 cannot write")
        if key.startswith(_RESERVED_SUMMARY):
            raise InvalidInput(f"The snapshot property {key!r} is reserved", advice="Use a prefix of your own")
        if key.startswith(_TABLE_PROPERTY_PREFIXES):
            raise InvalidInput(
                f"{key!r} is a table property; in a snapshot's summary it would do nothing",
                advice="Use set_properties() for the table, or options={…} for one write",
            )
    return dict(properties or {})
