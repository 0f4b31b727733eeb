"""Metadata changes of a table: columns, layout, properties, branches and tags, and the expiry of snapshots.

Each is a value that makes an intent from the current version of the table. A commit applies the intent to whatever
head it finds, so changes that do not touch each other both land.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from frazil.commit import binding
from frazil.commit.intents import Intent
from frazil.commit.operations import MetadataChange, Write, spelled
from frazil.commit.retry import Retry
from frazil.dml.nulls import checked_without_nulls
from frazil.dml.view import View
from frazil.format import evolution
from frazil.format.evolution import BoundColumn, Name
from frazil.format.metadata import MAIN, TableMetadata
from frazil.format.properties import checked_properties
from frazil.format.times import Moment, milliseconds
from frazil.model import Commit
from frazil.table.destination import Destination, recorded_service
from frazil.table.options import WriteOptions, checked_retry
from frazil.table.source import Source


@dataclass(frozen=True, slots=True)
class TableChange:
    """A call that changes a table's metadata."""

    verb: str
    parameters: Mapping[str, object]
    make: Callable[[TableMetadata], Intent]
    branch: str = MAIN
    becoming_required: Callable[[TableMetadata], Sequence[BoundColumn]] = lambda _base: ()
    """Columns that must not hold nulls, in any branch, when the change lands."""

    def run(self, destination: Destination, retry: Retry | None, commit_id: str | None) -> Commit:
        """Hand the change to the destination, unless an earlier commit has this id."""
        options: WriteOptions = {}
        if checked_retry(retry) is not None:
            options["retry"] = retry
        if commit_id is not None:
            options["commit_id"] = commit_id
        options = destination.accept(self.verb, options)
        base = destination.source.metadata()
        # By the call's arguments, not by the intent: once a rename has landed, its intent cannot be made again.
        named = {key: value if isinstance(value, Mapping) else spelled(value) for key, value in self.parameters.items()}
        identity, found = destination.identify(options.get("commit_id"), self.verb, named, base, self.branch)
        if found is not None:
            return found
        change = MetadataChange(base.uuid, self.make(base), name=self.verb.replace("_", " "))
        reads = _without_nulls(destination.source, base, self.becoming_required(base))
        send = partial(destination.change, change, base, identity=identity, retry=options.get("retry"), reads=reads)
        return recorded_service(destination, change.name, lambda _progress: send())


def _without_nulls(source: Source, base: TableMetadata, columns: Sequence[BoundColumn]) -> tuple[Write, ...]:
    """The check of each branch, as all of them have the table's schema. Raises InvalidInput."""
    if not columns:
        return ()
    branches = {MAIN, *(name for name, ref in base.refs.items() if ref["type"] == "branch")}
    lake, name = source.lake, str(source.ident)
    views = (View(lake.storage, lake.runtime, base, branch, name) for branch in sorted(branches))
    return tuple(checked_without_nulls(view, columns) for view in views)


# Columns


def add_column(
    name: Name, type_: object, *, after: Name | None, first: bool, doc: str | None, required: bool
) -> TableChange:
    return TableChange(
        "add_column",
        {"name": name, "type": str(type_), "after": after, "first": first, "doc": doc},
        lambda base: binding.make_add_column(base, name, type_, doc=doc, required=required, first=first, after=after),
    )


def drop_column(names: tuple[Name, ...]) -> TableChange:
    return TableChange("drop_column", {"names": names}, lambda base: binding.make_drop_columns(base, names))


def rename_column(old: Name, new: str) -> TableChange:
    return TableChange(
        "rename_column", {"old": old, "new": new}, lambda base: binding.make_rename_column(base, old, new)
    )


def widen_column(name: Name, type_: object) -> TableChange:
    return TableChange(
        "widen_column",
        {"name": name, "type": str(type_)},
        lambda base: binding.make_widen_column(base, name, type_),
    )


def move_column(name: Name, *, first: bool, after: Name | None, before: Name | None) -> TableChange:
    return TableChange(
        "move_column",
        {"name": name, "first": first, "after": after, "before": before},
        lambda base: binding.make_move_column(base, name, first=first, after=after, before=before),
    )


def make_optional(name: Name) -> TableChange:
    return TableChange("make_optional", {"name": name}, lambda base: binding.make_make_optional(base, name))


def require_column(name: Name) -> TableChange:
    return TableChange(
        "require_column",
        {"name": name},
        lambda base: binding.make_make_required(base, name),
        becoming_required=lambda base: _optional(base, [name]),
    )


def _optional(base: TableMetadata, names: Sequence[Name]) -> list[BoundColumn]:
    """Those of the columns that may be null, by themselves or with a struct around them."""
    columns = [evolution.bind(base.schema(), name) for name in names]
    return [each for each in columns if evolution.optional_path(base.schema(), each)]


def set_column_doc(name: Name, doc: str | None) -> TableChange:
    return TableChange("set_column_doc", {"name": name, "doc": doc}, lambda base: binding.make_set_doc(base, name, doc))


def set_keys(names: Sequence[Name] | None) -> TableChange:
    keys = () if names is None else [names] if isinstance(names, str) else names
    return TableChange(
        "set_keys",
        {"names": keys},
        lambda base: binding.make_set_keys(base, keys),
        becoming_required=lambda base: _optional(base, keys),
    )


# Layout


def set_partitioning(partition_by: Sequence[str] | None) -> TableChange:
    terms = () if partition_by is None else partition_by
    return TableChange(
        "set_partitioning", {"partition_by": terms}, lambda base: binding.make_set_partitioning(base, terms)
    )


def set_sort_order(sort_by: Sequence[str] | None) -> TableChange:
    terms = () if sort_by is None else sort_by
    return TableChange("set_sort_order", {"sort_by": terms}, lambda base: binding.make_set_sort_order(base, terms))


# Properties


def set_properties(properties: Mapping[str, str] | None) -> TableChange:
    updates = checked_properties({} if properties is None else properties)
    return TableChange(
        "set_properties", {"properties": updates}, lambda base: binding.make_property_change(base, updates)
    )


def remove_properties(keys: tuple[str, ...]) -> TableChange:
    return TableChange(
        "remove_properties", {"keys": keys}, lambda base: binding.make_property_change(base, removals=keys)
    )


# History


def expire_snapshots(older_than: Moment | None, retain_last: int | None) -> TableChange:
    limit = None if older_than is None else milliseconds(older_than, "older_than")
    return TableChange(
        "expire_snapshots",
        {"older_than": limit, "retain_last": retain_last},
        lambda base: binding.make_expire_snapshots(base, limit, retain_last),
    )


# Branches and tags


def create_branch(name: str, snapshot: int | str | None, retention: Mapping[str, int | None]) -> TableChange:
    return TableChange(
        "create_branch",
        {"name": name, "snapshot": snapshot, **retention},
        lambda base: binding.make_new_ref(base, name, "branch", snapshot, **retention),
    )


def create_tag(name: str, snapshot: int | str | None, max_ref_age_ms: int | None) -> TableChange:
    return TableChange(
        "create_tag",
        {"name": name, "snapshot": snapshot, "max_ref_age_ms": max_ref_age_ms},
        lambda base: binding.make_new_ref(base, name, "tag", snapshot, max_ref_age_ms=max_ref_age_ms),
    )


def drop_branch(name: str) -> TableChange:
    return TableChange("drop_branch", {"name": name}, lambda base: binding.make_remove_ref(base, name, "branch"))


def drop_tag(name: str) -> TableChange:
    return TableChange("drop_tag", {"name": name}, lambda base: binding.make_remove_ref(base, name, "tag"))


def fast_forward(branch: str, to: int | str) -> TableChange:
    return TableChange(
        "fast_forward",
        {"branch": branch, "to": to},
        lambda base: binding.make_fast_forward(base, branch, to),
        branch,
    )


def rollback_to(snapshot: int | str, branch: str) -> TableChange:
    return TableChange(
        "rollback_to",
        {"snapshot": snapshot, "branch": branch},
        lambda base: binding.make_rollback(base, snapshot, branch),
        branch,
    )


def set_current_snapshot(snapshot: int | str, branch: str) -> TableChange:
    return TableChange(
        "set_current_snapshot",
        {"snapshot": snapshot, "branch": branch},
        lambda base: binding.make_set_current(base, snapshot, branch),
        branch,
    )
