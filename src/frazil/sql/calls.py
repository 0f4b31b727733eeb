"""CALL with the names of Iceberg's procedures, for those that Frazil implements."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frazil.errors import InvalidInput, Unsupported
from frazil.format.schemas import suggestion
from frazil.format.times import milliseconds
from frazil.model import Commit, Expiry, ProcedureRows
from frazil.services import manifests
from frazil.sql.session import Context
from frazil.sql.tokens import Cursor, read_statement
from frazil.table import services
from frazil.table.handle import TableHandle
from frazil.table.options import WriteOptions
from frazil.wording import counted

Arguments = Mapping[str, Any]
_DAY_MS = 24 * 60 * 60 * 1000


def call(context: Context, cursor: Cursor) -> Commit | ProcedureRows:
    """``CALL [catalog.]system.procedure(table => 'shop.events', …)``"""
    cursor.expect("CALL")
    context.scope.check_outside("CALL", "procedures commit by themselves")
    name = cursor.name("a procedure")
    if "system" not in [each.lower() for each in name[-2:-1]]:
        raise InvalidInput(
            f"There is no procedure {'.'.join(name)}", advice="Write CALL system.rollback_to_snapshot(…)"
        )
    procedure = _PROCEDURES.get(name[-1].lower())
    if procedure is None:
        raise Unsupported(f"There is no procedure {name[-1]}", advice=f"Supported are {', '.join(sorted(_PROCEDURES))}")
    inside = cursor.peek(1)
    empty = cursor.sees("(") and inside is not None and inside.says(")")
    given = [] if empty else cursor.listed(_argument, "arguments in parentheses")
    if empty:
        cursor.group("arguments")
    cursor.end()
    arguments = procedure.named(given, name[-1])
    table = context.table(_table_name(arguments.pop("table")))
    return procedure.run(table, arguments)


def _table_name(text: object) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise InvalidInput(f"The argument table must be a table name in quotes, not {text!r}")
    return Cursor(read_statement(text)).name("a table")


def _argument(cursor: Cursor) -> tuple[str | None, Any]:
    following = cursor.peek(1)
    name = None
    if following is not None and following.says("=>"):
        name = cursor.part("an argument").lower()
        cursor.expect("=>")
    return name, _value(cursor)


def _value(cursor: Cursor) -> Any:
    token = cursor.next
    if token is None:
        raise cursor.wrong("a value")
    if token.kind == "text":
        return cursor.text()
    if token.kind == "number" or token.says("-"):
        return cursor.number()
    if cursor.accept("TIMESTAMP"):
        return cursor.text("a timestamp, such as '2026-11-01T00:00:00Z'")
    if token.says("TRUE", "FALSE", "NULL"):
        return {"TRUE": True, "FALSE": False, "NULL": None}[cursor.take().value.upper()]
    if cursor.accept("ARRAY"):
        return cursor.listed(_value, "values in parentheses")
    if cursor.accept("MAP"):
        values = cursor.listed(_value, "keys and values in parentheses")
        if len(values) % 2:
            raise InvalidInput("map() in the call has a key without a value")
        return {str(key): str(value) for key, value in zip(values[::2], values[1::2], strict=True)}
    raise cursor.wrong("a constant")


@dataclass(frozen=True, slots=True)
class _Procedure:
    """What a procedure takes, in Iceberg's order, and what it does."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    run: Callable[[TableHandle, Arguments], Commit | ProcedureRows]

    def named(self, given: list[object], procedure: str) -> dict[str, Any]:
        names = ("table", *self.required, *self.optional)
        found: dict[str, Any] = {}
        for position, each in enumerate(given):
            assert isinstance(each, tuple)
            name = each[0] if each[0] is not None else names[position] if position < len(names) else None
            if name is None:
                raise InvalidInput(f"{procedure} takes {counted(len(names), 'argument')}, not {len(given)}")
            if name not in names:
                raise InvalidInput(f"{procedure} has no argument {name!r}", advice=suggestion(name, names))
            if name in found:
                raise InvalidInput(f"{procedure} was given the argument {name!r} twice")
            found[name] = each[1]
        lacking = [each for each in ("table", *self.required) if found.get(each) is None]
        if lacking:
            raise InvalidInput(f"{procedure} requires the argument {lacking[0]!r}")
        return found


def _rollback_to_timestamp(table: TableHandle, given: Arguments) -> Commit:
    moment = table.scan(as_of=given["timestamp"]).snapshot_id
    assert moment is not None
    return table.rollback_to(moment)


def _set_current_snapshot(table: TableHandle, given: Arguments) -> Commit:
    target = [each for each in (given.get("snapshot_id"), given.get("ref")) if each is not None]
    if len(target) != 1:
        raise InvalidInput("set_current_snapshot takes either snapshot_id or ref")
    return table.set_current_snapshot(target[0])


def _result(commit: Commit | None, **row: object) -> ProcedureRows:
    """One row."""
    return ProcedureRows([row], commit)


_CURVE = re.compile(r"(?P<curve>zorder|hilbert)\s*\((?P<columns>.*)\)", re.IGNORECASE | re.DOTALL)


def _order(given: Arguments) -> tuple[str, list[str]]:
    """The strategy, and its terms. A curve is written as a sort order: ``zorder(a, b)``."""
    strategy = str(given.get("strategy") or ("sort" if given.get("sort_order") else "binpack")).lower()
    text = given.get("sort_order")
    if text is None:
        return strategy, []
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"sort_order must be text such as 'ts desc, id' or 'zorder(a, b)', not {text!r}")
    if strategy == "binpack":
        raise InvalidInput("The strategy 'binpack' takes no sort_order", advice="Write strategy => 'sort'")
    curve = _CURVE.fullmatch(text.strip())
    if curve is None:
        return strategy, _terms(text)
    if strategy not in ("sort", curve["curve"].lower()):
        raise InvalidInput(f"The strategy {strategy!r} does not fit the sort_order {text!r}")
    return curve["curve"].lower(), _terms(curve["columns"])


def _terms(text: str) -> list[str]:
    """Split at the commas outside of parentheses: ``bucket(16, id) desc, ts``."""
    terms, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            terms.append("")
        else:
            terms[-1] += char
    return [term.strip() for term in terms]


def _branch(given: Arguments) -> WriteOptions:
    return {} if given.get("branch") is None else {"branch": str(given["branch"])}


def _rewrite_data_files(table: TableHandle, given: Arguments) -> ProcedureRows:
    strategy, by = _order(given)
    options: WriteOptions = {**_branch(given), "options": given.get("options") or {}}
    done = services.compacted(table._destination, given.get("where"), strategy, by, options)
    return _result(
        done.commit,
        rewritten_data_files_count=done.rewritten_files,
        added_data_files_count=done.added_files,
        rewritten_bytes_count=done.rewritten_bytes,
        failed_data_files_count=done.failed_files,
        removed_delete_files_count=done.removed_delete_files,
    )


def _rewrite_position_delete_files(table: TableHandle, given: Arguments) -> ProcedureRows:
    done = table.rewrite_position_deletes(given.get("where"), options=given.get("options") or {})
    summary = _summary(table, done)
    return _result(
        done,
        rewritten_delete_files_count=_number(summary, "removed-delete-files"),
        added_delete_files_count=_number(summary, "added-delete-files"),
        rewritten_bytes_count=_number(summary, "removed-files-size"),
        added_bytes_count=_number(summary, "added-files-size"),
    )


def _rewrite_manifests(table: TableHandle, given: Arguments) -> ProcedureRows:
    fields = [] if given.get("sort_by") is None else [str(each) for each in given["sort_by"]]
    done = table.rewrite_manifests(spec_id=given.get("spec_id"), sort_by=fields)
    summary = _summary(table, done)
    return _result(
        done,
        rewritten_manifests_count=_number(summary, manifests.REPLACED),
        added_manifests_count=_number(summary, manifests.CREATED),
    )


def _summary(table: TableHandle, done: Commit) -> Mapping[str, str]:
    """Of the snapshot that a commit made; empty: it made none."""
    if not done.changed or done.snapshot_id is None:
        return {}
    found = table._metadata().snapshot(done.snapshot_id)
    return {} if found is None else found.summary


def _number(summary: Mapping[str, str], key: str) -> int:
    text = str(summary.get(key, ""))
    return int(text) if text.isdigit() else 0


def _expire_snapshots(table: TableHandle, given: Arguments) -> ProcedureRows:
    if given.get("snapshot_ids") is not None:
        raise Unsupported("expire_snapshots does not take snapshot_ids", advice="Pass older_than and retain_last")
    if given.get("clean_expired_metadata"):
        raise Unsupported(
            "expire_snapshots does not remove schemas and specs", advice="Leave clean_expired_metadata out"
        )
    done = table.expire_snapshots(given.get("older_than"), given.get("retain_last"))
    found = done.expired or Expiry()
    row = {
        "deleted_data_files_count": found.data_files,
        "deleted_position_delete_files_count": found.position_delete_files,
        "deleted_equality_delete_files_count": found.equality_delete_files,
        "deleted_manifest_files_count": found.manifests,
        "deleted_manifest_lists_count": found.manifest_lists,
        "deleted_statistics_files_count": found.statistics_files,
    }
    return ProcedureRows([row], done)


def _is_young(table: TableHandle, moment: object) -> bool:
    now = table._source.lake.runtime.now_ms()
    return now - milliseconds(moment, "older_than") < _DAY_MS  # type: ignore[arg-type]


def _remove_orphan_files(table: TableHandle, given: Arguments) -> ProcedureRows:
    """As Iceberg's: younger files than 24 hours are refused, also as a dry run."""
    older_than = given.get("older_than")
    if older_than is not None and _is_young(table, older_than):
        raise InvalidInput(
            "remove_orphan_files does not take files younger than 24 hours, as a writer may still need them",
            advice="lake.table(…).remove_orphans(older_than=…) does, where every writer is Frazil's",
        )
    age = dt.timedelta(days=3) if older_than is None else older_than
    report = table.remove_orphans(age, dry_run=bool(given.get("dry_run")), location=given.get("location"))
    return ProcedureRows({"orphan_file_location": path} for path in report.orphans)


_PROCEDURES = {
    "rollback_to_snapshot": _Procedure(
        ("snapshot_id",), (), lambda table, given: table.rollback_to(given["snapshot_id"])
    ),
    "rollback_to_timestamp": _Procedure(("timestamp",), (), _rollback_to_timestamp),
    "set_current_snapshot": _Procedure((), ("snapshot_id", "ref"), _set_current_snapshot),
    "cherrypick_snapshot": _Procedure(
        ("snapshot_id",), (), lambda table, given: table.cherry_pick(given["snapshot_id"])
    ),
    "fast_forward": _Procedure(
        ("branch", "to"), (), lambda table, given: table.fast_forward(given["branch"], given["to"])
    ),
    "rewrite_data_files": _Procedure((), ("strategy", "sort_order", "options", "where", "branch"), _rewrite_data_files),
    "rewrite_position_delete_files": _Procedure((), ("options", "where"), _rewrite_position_delete_files),
    "rewrite_manifests": _Procedure((), ("use_caching", "spec_id", "sort_by"), _rewrite_manifests),
    "expire_snapshots": _Procedure(
        (),
        (
            "older_than",
            "retain_last",
            "max_concurrent_deletes",
            "stream_results",
            "snapshot_ids",
            "clean_expired_metadata",
        ),
        _expire_snapshots,
    ),
    "remove_orphan_files": _Procedure(
        (),
        (
            "older_than",
            "location",
            "dry_run",
            "max_concurrent_deletes",
            "equal_schemes",
            "equal_authorities",
            "prefix_mismatch_mode",
        ),
        _remove_orphan_files,
    ),
}
