"""A table's facts as plain values, for JSON output and for the tables printed to people."""

from __future__ import annotations

import itertools
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema

from frazil.cli import _output as out
from frazil.cli._errors import masked_properties
from frazil.cli._snippets import snippets
from frazil.commit.origins import author_of
from frazil.errors import InvalidInput
from frazil.format.metadata import MAIN, TableMetadata
from frazil.model import Commit, Ident, LakeCommit, SharedCommit, Snapshot
from frazil.table.source import CurrentTable
from frazil.wording import counted

if TYPE_CHECKING:
    from pyiceberg.table.sorting import SortField

    from frazil.lake import Lake
    from frazil.table.table import Table


def versions() -> dict[str, str]:
    names = ("frazil", "pyiceberg", "pyarrow")
    return {**{name: installed(name) for name in names}, "python": platform.python_version()}


def table_facts(lake: Lake, name: str) -> dict[str, Any]:
    """What ``frazil show`` prints, from one read of the head, so that the facts are consistent."""
    ident = Ident.parse(name)
    head = lake.catalog.load(ident)
    metadata = head.metadata
    schema, current = metadata.schema(), metadata.head_snapshot()
    return {
        "table": str(ident),
        "uuid": metadata.uuid,
        "format_version": metadata.format_version,
        "location": metadata.location,
        "metadata_location": head.location,
        "schema": [
            {"id": f.field_id, "name": f.name, "type": str(f.field_type), "required": f.required, "doc": f.doc}
            for f in schema.fields
        ],
        "keys": sorted(schema.find_field(each).name for each in schema.identifier_field_ids),
        "partitioning": [_transform(schema, field) for field in metadata.spec().fields],
        "sort_order": [
            f"{_transform(schema, field)} {field.direction} {field.null_order}"
            for field in metadata.sort_order().fields
        ],
        "properties": masked_properties(metadata.properties),
        "refs": {
            ref: {"type": value.get("type", "branch"), "snapshot_id": value["snapshot-id"]}
            for ref, value in metadata.refs.items()
        },
        "snapshot": None if current is None else snapshot_facts(current),
        "open_with": snippets(lake.uri, lake.catalog.name, lake.warehouse, ident, metadata.location),
    }


def _transform(schema: Schema, field: PartitionField | SortField) -> str:
    """As create_table() takes it: day(ts), bucket(16, id), or the column itself."""
    column = schema.find_column_name(field.source_id) or f"<column {field.source_id}>"
    match str(field.transform):
        case "identity":
            return column
        case text if text.endswith("]"):
            transform, _, width = text.rstrip("]").partition("[")
            return f"{transform}({width}, {column})"
        case text:
            return f"{text}({column})"


def snapshot_facts(snapshot: Snapshot, shared: Sequence[SharedCommit] = ()) -> dict[str, Any]:
    author = author_of(snapshot)
    apps = dict.fromkeys(each.origin.app for each in shared if each.origin is not None)
    return {
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "sequence_number": snapshot.sequence_number,
        "committed_at": out.iso_time(snapshot.timestamp_ms),
        "operation": snapshot.operation,
        "verb": author.verb,
        "app": author.app or ", ".join(apps) or None,
        "host": author.host,
        "summary": dict(snapshot.summary),
    }


def print_table(facts: Mapping[str, Any]) -> None:
    head = facts["snapshot"]
    out.print_facts(
        [
            ("table", facts["table"]),
            ("uuid", facts["uuid"]),
            ("format version", facts["format_version"]),
            ("location", facts["location"]),
            ("partitioned by", ", ".join(facts["partitioning"]) or "nothing"),
            ("sorted by", ", ".join(facts["sort_order"]) or "nothing"),
            ("keys", ", ".join(facts["keys"]) or "none"),
            ("snapshot", "none yet" if head is None else _head_sentence(head)),
        ]
    )
    out.print_heading("Schema")
    out.print_grid(
        ["id", "column", "type", "null", "comment"],
        ([f["id"], f["name"], f["type"], "no" if f["required"] else "yes", f["doc"]] for f in facts["schema"]),
        right=frozenset({"id"}),
    )
    if facts["properties"]:
        out.print_heading("Properties")
        out.print_facts(sorted(facts["properties"].items()))
    if facts["refs"]:
        out.print_heading("Branches and tags")
        out.print_facts([(ref, f"{value['type']} at {value['snapshot_id']}") for ref, value in facts["refs"].items()])
    for engine, title in (("pyiceberg", "Open it with PyIceberg"), ("java", "Open it with Iceberg Java")):
        if snippet := facts["open_with"].get(engine):
            out.print_heading(title)
            out.print_text(snippet)


def _head_sentence(head: Mapping[str, Any]) -> str:
    rows = _rows(head["summary"])
    files = head["summary"].get("total-data-files", "?")
    counts = f"{_of(rows, 'row')} in {_of(files, 'file')}"
    return f"{head['snapshot_id']} ({head['operation']}, {head['committed_at']}): {counts}"


def _of(count: str, noun: str) -> str:
    """A count that may be unknown, or a bound, with its noun."""
    return f"{count} {noun if count.removeprefix('at most ') == '1' else noun + 's'}"


def _rows(summary: Mapping[str, str]) -> str:
    """The number of live rows: those of the files without deleted ones. Equality deletes may delete any number."""
    records, marked = summary.get("total-records", ""), summary.get("total-position-deletes", "0")
    if not records.isdigit() or not marked.isdigit():
        return "?"
    by_key = summary.get("total-equality-deletes", "0") != "0"
    return f"{'at most ' if by_key else ''}{int(records) - int(marked)}"


def _deleted(summary: Mapping[str, str]) -> int | None:
    counts = [summary.get(key, "") for key in ("deleted-records", "added-position-deletes")]
    return sum(int(each) for each in counts if each.isdigit()) or None


def history(lake: Lake, name: str, branch: str, limit: int) -> list[dict[str, Any]]:
    """The branch's snapshots, newest first."""
    ident = Ident.parse(name)
    metadata = lake.catalog.load(ident).metadata
    start = metadata.ref_snapshot_id(branch)
    if start is None and branch != MAIN:
        raise InvalidInput(f"The table {ident} has no branch or tag {branch!r}", advice=_known_refs(metadata))
    shared = CurrentTable(lake, ident).shared_commits(metadata)
    shown = itertools.islice(metadata.ancestors(start), limit or None)
    return [snapshot_facts(each, shared.get(each.snapshot_id, ())) for each in shown]


def _known_refs(metadata: TableMetadata) -> str:
    return f"Existing ones: {', '.join(sorted(metadata.refs)) or 'none'}"


def print_history(found: list[dict[str, Any]]) -> None:
    rows = (
        [
            each["sequence_number"],
            each["committed_at"],
            each["snapshot_id"],
            each["operation"],
            each["verb"],
            each["app"],
            each["summary"].get("added-records"),
            _deleted(each["summary"]),
            _rows(each["summary"]),
        ]
        for each in found
    )
    texts = ("committed at", "operation", "verb", "app")
    columns = ["sequence", "committed at", "snapshot", "operation", "verb", "app", "added", "deleted", "rows"]
    out.print_grid(columns, rows, right=frozenset(columns).difference(texts))


def files(table: Table) -> list[dict[str, Any]]:
    return [asdict(file) for file in table.files()]


def print_files(found: list[dict[str, Any]]) -> None:
    rows = (
        [
            _partition(f["partition"]),
            f["rows"],
            out.human_bytes(f["bytes"]),
            f["deletes"],
            f["sequence_number"],
            f["path"],
        ]
        for f in found
    )
    columns = ["partition", "rows", "size", "deletes", "sequence", "path"]
    out.print_grid(columns, rows, right=frozenset({"rows", "size", "deletes", "sequence"}))


def _partition(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={out.plain(value)}" for name, value in values.items())


def commit_facts(commit: Commit) -> dict[str, Any]:
    return asdict(commit)


def commit_sentence(commit: Commit, table: str) -> str:
    if commit.already_committed:
        return f"Already committed as {commit.commit_id} (snapshot {commit.snapshot_id}); nothing was appended."
    if not commit.changed:
        return f"The file has no rows; {table} is unchanged."
    retries = "" if commit.attempts == 1 else f" after {commit.attempts} attempts"
    return (
        f"Appended {counted(commit.rows_inserted, 'row')} in {counted(commit.files_added, 'file')} "
        f"({out.human_bytes(commit.bytes_written)}) to {table}{retries}: "
        f"snapshot {commit.snapshot_id}, commit id {commit.commit_id}."
    )


def lake_history(lake: Lake, limit: int) -> list[dict[str, Any]]:
    """The commits of all tables, newest first."""
    return [_lake_commit(each) for each in reversed(lake.history(limit=limit or None))]


def _lake_commit(commit: LakeCommit) -> dict[str, Any]:
    return {
        "committed_at": out.iso_time(int(commit.committed_at.timestamp() * 1000)),
        "commit_id": commit.commit_id,
        "verb": commit.verb,
        "app": commit.app,
        "host": commit.host,
        "tables": [
            {
                "table": each.table,
                "action": each.action,
                "snapshot_ids": list(each.snapshot_ids),
                "renamed_from": each.renamed_from,
            }
            for each in commit.tables
        ],
    }


def print_lake_history(found: list[dict[str, Any]]) -> None:
    rows = (
        [each["committed_at"], each["verb"], each["app"], ", ".join(map(_moved, each["tables"])), each["commit_id"]]
        for each in found
    )
    out.print_grid(["committed at", "verb", "app", "tables", "commit id"], rows)


def _moved(table: Mapping[str, Any]) -> str:
    """With what happened to the name."""
    if table["renamed_from"]:
        return f"{table['renamed_from']} is {table['table']}"
    return str(table["table"]) if table["action"] == "commit" else f"{table['table']} ({table['action']})"
