"""The verbs that change rows: each makes a statement from its arguments and hands it to the table's destination."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import replace

import pyarrow as pa

from frazil.commit.binding import make_schema_union
from frazil.commit.intents import PropertyChange, UnpartitionedSpec
from frazil.commit.operations import MetadataChange, spelled
from frazil.dml.add_files import add_files as build_add_files
from frazil.dml.add_files import checked_paths, name_mapping_of, read_footers
from frazil.dml.assignments import is_column
from frazil.dml.cherry_pick import cherry_pick as pick
from frazil.dml.engine import ARROW, Engine
from frazil.dml.matching import GivenRows, Matching, default_mode, matching
from frazil.dml.merge import Merge, Source
from frazil.dml.row_delta import row_delta as build_row_delta
from frazil.dml.upsert import key_spec
from frazil.errors import InvalidInput, Unsupported
from frazil.expr import Filter, parse_filter, with_params
from frazil.format.properties import NAME_MAPPING
from frazil.format.schemas import evolve
from frazil.model import Commit, Isolation
from frazil.stage.rows import opened
from frazil.table.begin import begin
from frazil.table.call import Build, Call, Statement
from frazil.table.destination import Destination
from frazil.table.options import MODES, UPSERT_MODES, Mode, UpsertMode, WriteOptions, chosen_mode

Params = Mapping[str, object]


def append(destination: Destination, rows: object, options: WriteOptions) -> Commit:
    rows = opened(rows)
    call = begin(destination, "append", options, {}, rows)
    if call.found is not None:
        # The count of the commit does not include dropped rows.
        return call.found if call.settings.on_deleted == "drop" else _same_rows(call.found, rows)
    if call.merge_schema:
        rows = call.engine.without_untyped(rows, call.view.metadata.schema())
    if call.dry_run:
        return call.preview(_fitting_rows(rows, call))
    if call.merge_schema:
        if call.engine is ARROW and not isinstance(rows, pa.RecordBatchReader):
            # Rows that do not fit are refused now, while the table has its old schema.
            _fitting_rows(rows, call)
        call = _grown(destination, call, rows)
    return destination.run(Statement(call, lambda view, settings: call.engine.append(view, rows, settings)))


def add_files(destination: Destination, paths: object, options: WriteOptions) -> Commit:
    files = checked_paths(paths)
    call = begin(destination, "append", options, {"files": files})
    if call.found is not None:
        return call.found
    if call.merge_schema:
        raise Unsupported("add_files() does not add columns to the table", advice="Add them first, with add_column()")
    footers = read_footers(call.view, files)
    if call.view.metadata.name_mapping is None and not all(each.has_ids for each in footers):
        # Committed with the files, which cannot be read without it.
        call = call.after(PropertyChange({NAME_MAPPING: name_mapping_of(call.view.schema)}))
    return _run(destination, Statement(call, lambda view, settings: build_add_files(view, footers, settings)))


def overwrite(
    destination: Destination,
    rows: object,
    where: str,
    case_sensitive: bool,
    options: WriteOptions,
    params: Params | None = None,
) -> Commit:
    (where,) = with_params(params, where)
    rows = opened(rows)
    call = begin(destination, "overwrite", options, _named({"where": where}, params), rows)
    condition = _condition(where, call, case_sensitive)
    if call.found is not None:
        return _same_rows(call.found, rows)
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: lambda view, settings: call.engine.overwrite(view, rows, condition, settings),
    )


def replace_partitions(destination: Destination, rows: object, options: WriteOptions) -> Commit:
    rows = opened(rows)
    call = begin(destination, "replace_partitions", options, {}, rows)
    if call.found is not None:
        return _same_rows(call.found, rows)
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: lambda view, settings: call.engine.replace_partitions(view, rows, settings),
    )


def delete(
    destination: Destination,
    where: str,
    mode: Mode | None,
    on_added: str | None,
    case_sensitive: bool,
    options: WriteOptions,
    params: Params | None = None,
) -> Commit:
    (where,) = with_params(params, where)
    call = begin(destination, "delete", _with_on_added(on_added, options), _named({"where": where}, params))
    condition = _condition(where, call, case_sensitive)
    if call.found is not None:
        return call.found
    chosen = chosen_mode(mode, call.view.metadata, "write.delete.mode", MODES, "copy-on-write")
    return _run(
        destination, Statement(call, lambda view, settings: call.engine.delete(view, condition, settings, chosen), True)
    )


def _with_on_added(on_added: str | None, options: WriteOptions) -> WriteOptions:
    """``on_added`` is an earlier name of ``on_conflict``, of deletes alone."""
    if on_added is None:
        return options
    if on_added not in ("abort", "include"):
        raise InvalidInput(f"on_added must be 'abort' or 'include', not {on_added!r}")
    if options.get("on_conflict") is not None:
        raise InvalidInput("on_added and on_conflict say the same", advice="Leave on_added out")
    if on_added == "abort":
        return {**options, "on_conflict": "abort"}
    # At snapshot isolation, rows that were added concurrently would not be noticed.
    return {**options, "on_conflict": "redo", "isolation": Isolation.SERIALIZABLE}


def update(
    destination: Destination,
    assignments: Mapping[str, object],
    where: str,
    mode: Mode | None,
    case_sensitive: bool,
    options: WriteOptions,
    params: Params | None = None,
) -> Commit:
    is_mapping = isinstance(assignments, Mapping)
    shown = {str(name): repr(value) for name, value in assignments.items()} if is_mapping else {}
    if is_mapping:
        where, *values = with_params(params, where, *assignments.values())
        assignments = dict(zip(assignments, values, strict=True))
    call = begin(destination, "update", options, _named({"where": where, "set": shown}, params))
    condition = _condition(where, call, case_sensitive)
    if call.found is not None:
        return call.found
    chosen = chosen_mode(mode, call.view.metadata, "write.update.mode", MODES, "copy-on-write")
    return _run(
        destination,
        Statement(
            call,
            lambda view, settings: call.engine.update(view, assignments, condition, settings, chosen),
            # A Spark Column may give other values when it is evaluated again.
            is_whole=not any(is_column(each) for each in assignments.values()) if is_mapping else False,
            is_by_name=True,
        ),
    )


def upsert(
    destination: Destination,
    rows: object,
    mode: UpsertMode | None,
    options: WriteOptions,
    on: Sequence[str] | None = None,
    latest_by: str | None = None,
) -> Commit:
    rows = opened(rows)
    given = {"on": on, "latest_by": latest_by}
    call = begin(destination, "upsert", options, {name: each for name, each in given.items() if each is not None}, rows)
    if call.found is not None:
        return _same_rows(call.found, rows)
    chosen = chosen_mode(mode, call.view.metadata, "frazil.upsert.mode", UPSERT_MODES, "equality")
    if on is not None or latest_by is not None:
        by = matching(call.view.metadata, on, latest_by)
        chosen = default_mode(by, chosen, is_given=mode is not None)
        if not by.is_plain:
            return _upsert_matching(destination, call, rows, by, chosen)
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: lambda view, settings: call.engine.upsert(view, rows, settings, chosen),
        by_key=chosen == "equality",
        is_whole=chosen != "equality",
    )


def _upsert_matching(destination: Destination, call: Call, rows: object, by: Matching, mode: UpsertMode) -> Commit:
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: _upserting(call.engine, GivenRows(rows), by, mode),
        is_by_name=True,
    )


def _upserting(engine: Engine, rows: GivenRows, by: Matching, mode: UpsertMode) -> Build:
    return lambda view, settings: engine.upsert_matching(view, rows, by, settings, mode)


def delete_keys(
    destination: Destination,
    rows: object,
    on: Sequence[str] | None,
    mode: UpsertMode | None,
    options: WriteOptions,
) -> Commit:
    rows = opened(rows)
    call = begin(destination, "delete_keys", options, {} if on is None else {"on": on}, rows)
    if call.found is not None:
        return call.found
    metadata = call.view.metadata
    by = matching(metadata, on)
    chosen = chosen_mode(mode, metadata, "frazil.upsert.mode", UPSERT_MODES, "equality")
    chosen = default_mode(by, chosen, is_given=mode is not None)
    if chosen == "equality" and mode is None and key_spec(metadata) is None:
        chosen = "position"
    given = GivenRows(rows)
    return _run(
        destination,
        Statement(
            call,
            lambda view, settings: call.engine.delete_keys(view, given, by, settings, chosen),
            is_whole=chosen != "equality",
            is_by_name=True,
        ),
    )


def merge(
    destination: Destination, source: object, mode: Mode | None, options: WriteOptions, plan: Merge, evolves: bool
) -> Commit:
    rows = opened(source)
    shown = {"on": str(plan.on), "clauses": [str(each) for each in plan.clauses]}
    call = begin(destination, "merge", options, shown, rows)
    if call.found is not None:
        return call.found
    call = replace(call, merge_schema=call.merge_schema or evolves)
    chosen = chosen_mode(mode, call.view.metadata, "write.merge.mode", MODES, "copy-on-write")
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: _merging(call.engine, Source(rows), plan, chosen),
        # A Spark Column may give other values when it is evaluated again.
        is_whole=not any(map(is_column, plan.given)),
        takes_back=call.engine is not ARROW,
        is_by_name=True,
    )


def _merging(engine: Engine, source: Source, plan: Merge, mode: Mode) -> Build:
    return lambda view, settings: engine.merge(view, source, plan, settings, mode)


def explain_merge(destination: Destination, source: object, options: WriteOptions, plan: Merge) -> str:
    call = begin(destination, "merge", options, {}, source)
    return call.engine.explain_merge(call.view, source, plan)


def row_delta(
    destination: Destination,
    rows: object,
    positions: Mapping[str, Sequence[int]] | None,
    keys: object,
    options: WriteOptions,
) -> Commit:
    given = {"rows": rows is not None, "positions": positions is not None, "keys": keys is not None}
    call = begin(destination, "row_delta", options, given)
    if call.found is not None:
        return call.found if rows is None else _same_rows(call.found, rows)
    return _run_with_rows(
        destination,
        call,
        rows,
        lambda rows: lambda view, settings: build_row_delta(view, settings, rows=rows, positions=positions, keys=keys),
        by_key=keys is not None,
        is_whole=False,
    )


def cherry_pick(destination: Destination, snapshot: int, options: WriteOptions) -> Commit:
    call = begin(destination, "cherry_pick", options, {"snapshot": snapshot})
    if call.found is not None:
        return call.found
    return _run(destination, Statement(call, lambda view, settings: pick(view, snapshot, settings)))


def _named(parameters: Mapping[str, object], params: Params | None) -> Mapping[str, object]:
    """What identifies a call. Without ``params`` it is what earlier versions made of it."""
    if params is None:
        return parameters
    return {**parameters, "params": {name: spelled(value) for name, value in params.items()}}


def _condition(where: str, call: Call, case_sensitive: bool) -> Filter:
    if where is None:
        raise InvalidInput("where is missing", advice='Write where="true" to mean every row')
    return parse_filter(where, call.view.metadata.schema(), case_sensitive=case_sensitive)


def _run(destination: Destination, statement: Statement) -> Commit:
    if statement.call.dry_run:
        return _tried(statement)
    return destination.run(statement)


def _tried(statement: Statement) -> Commit:
    """What the statement would do: its files are staged and deleted again."""
    write = statement.write()
    statement.call.view.storage.delete(write.staged_paths)
    return statement.call.preview(write.rows.inserted, write.rows.updated, write.rows.deleted)


def _run_with_rows(
    destination: Destination,
    call: Call,
    rows: object,
    make: Callable[[object], Build],
    *,
    by_key: bool = False,
    is_whole: bool = True,
    takes_back: bool = False,
    is_by_name: bool = False,
) -> Commit:
    """Run a write of rows, with ``merge_schema`` on a table whose schema has their columns."""
    if call.merge_schema and rows is not None:
        metadata = call.view.metadata
        rows = call.engine.without_untyped(rows, metadata.schema())
        grown = call.after(make_schema_union(metadata, call.engine.row_schema(rows, metadata.schema())))
        if call.dry_run:
            call = grown
        elif grown.view.metadata.current_schema_id != metadata.current_schema_id:
            if call.engine is ARROW and not isinstance(rows, pa.RecordBatchReader):
                # Rows that do not fit are refused while the table has its old schema. A stream is read only once.
                _tried(Statement(_with_key_spec(grown, by_key), make(rows)))
            call = _grown(destination, call, rows)
    return _run(destination, Statement(_with_key_spec(call, by_key), make(rows), is_whole, takes_back, is_by_name))


def _grown(destination: Destination, call: Call, rows: object) -> Call:
    """The call on the table with the columns of the rows.

    The columns are committed before any row is staged: files have ids that the catalog has confirmed (rule P16).
    """
    metadata = call.view.metadata
    union = make_schema_union(metadata, call.engine.row_schema(rows, metadata.schema()))
    destination.change(MetadataChange(metadata.uuid, union), metadata, retry=call.retry)
    return call.on(destination.source.metadata())


def _with_key_spec(call: Call, by_key: bool) -> Call:
    """Deletes by key apply to every partition only in a spec without partitions (rule P21)."""
    if by_key and key_spec(call.view.metadata) is None:
        return call.after(UnpartitionedSpec())
    return call


def _same_rows(found: Commit, rows: object) -> Commit:
    """The earlier commit, unless this call has another number of rows. A stream of rows is not counted."""
    before = found.rows_inserted + found.rows_updated
    # A dict of columns has as many items as columns.
    count = len(rows) if isinstance(rows, Sized) and not isinstance(rows, Mapping) else before
    if count != before:
        raise InvalidInput(
            f"The commit id {found.commit_id!r} was already used on this table for {before} rows, "
            f"and this call has {count}",
            advice="A commit id names one write; repeat it only to repeat that write",
        )
    return found


def _fitting_rows(rows: object, call: Call) -> int:
    """How many rows there are. Raises SchemaMismatch for a row that does not fit the schema, grown by merge_schema."""
    metadata = call.view.metadata
    schema = metadata.schema()
    if call.merge_schema:
        evolved = evolve(schema, metadata.last_column_id, call.engine.row_schema(rows, schema))
        schema = evolved[0] if evolved is not None else schema
    return call.engine.count_fitting(rows, schema)
