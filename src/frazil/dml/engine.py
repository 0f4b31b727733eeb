"""The engines that run a verb: each finds the rows that change, stages files and returns one ``Write``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa
from pyiceberg.schema import Schema

from frazil.commit.operations import Write
from frazil.dml.append import append
from frazil.dml.delete import delete
from frazil.dml.matching import GivenRows, Matching, delete_keys, upsert_matching
from frazil.dml.merge import Merge, Source
from frazil.dml.merge_arrow import explain, merge
from frazil.dml.overwrite import overwrite, replace_partitions
from frazil.dml.resolve import Resolving, resolve
from frazil.dml.rewrite import Rewriting, rewrite
from frazil.dml.update import update
from frazil.dml.upsert import UpsertMode, upsert
from frazil.dml.view import Mode, Settings, View
from frazil.expr import Filter
from frazil.stage.rows import conform, incoming_schema, to_reader, without_untyped

EngineName = Literal["spark", "arrow"]


class Engine(Protocol):
    """What both engines can do. ``rows`` are of the kind that the engine takes."""

    @property
    def name(self) -> EngineName: ...

    def append(self, view: View, rows: object, settings: Settings) -> Write: ...

    def overwrite(self, view: View, rows: object, where: Filter, settings: Settings) -> Write: ...

    def replace_partitions(self, view: View, rows: object, settings: Settings) -> Write: ...

    def delete(self, view: View, where: Filter, settings: Settings, mode: Mode) -> Write: ...

    def update(
        self, view: View, assignments: Mapping[str, object], where: Filter, settings: Settings, mode: Mode
    ) -> Write: ...

    def upsert(self, view: View, rows: object, settings: Settings, mode: UpsertMode) -> Write: ...

    def upsert_matching(
        self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode
    ) -> Write: ...

    def delete_keys(self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write: ...

    def merge(self, view: View, source: Source, plan: Merge, settings: Settings, mode: Mode) -> Write: ...

    def explain_merge(self, view: View, rows: object, plan: Merge) -> str: ...

    def rewrite(self, view: View, settings: Settings, work: Rewriting) -> Write: ...

    def resolve(self, view: View, settings: Settings, work: Resolving) -> Write: ...

    def row_schema(self, rows: object, schema: Schema | None) -> pa.Schema:
        """The columns that rows have. ``schema``: the table's, for rows without types of their own."""
        ...

    def without_untyped(self, rows: object, schema: Schema) -> object:
        """The rows without all-null columns that the table does not have."""
        ...

    def count_fitting(self, rows: object, schema: Schema) -> int:
        """How many rows there are. Raises SchemaMismatch if one of them does not fit the schema."""
        ...


@dataclass(frozen=True, slots=True)
class ArrowEngine:
    """Runs verbs in this process."""

    @property
    def name(self) -> EngineName:
        return "arrow"

    def append(self, view: View, rows: object, settings: Settings) -> Write:
        return append(view, rows, settings)

    def overwrite(self, view: View, rows: object, where: Filter, settings: Settings) -> Write:
        return overwrite(view, rows, where, settings)

    def replace_partitions(self, view: View, rows: object, settings: Settings) -> Write:
        return replace_partitions(view, rows, settings)

    def delete(self, view: View, where: Filter, settings: Settings, mode: Mode) -> Write:
        return delete(view, where, settings, mode)

    def update(
        self, view: View, assignments: Mapping[str, object], where: Filter, settings: Settings, mode: Mode
    ) -> Write:
        return update(view, assignments, where, settings, mode)

    def upsert(self, view: View, rows: object, settings: Settings, mode: UpsertMode) -> Write:
        return upsert(view, rows, settings, mode)

    def upsert_matching(self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
        return upsert_matching(view, rows, by, settings, mode)

    def delete_keys(self, view: View, rows: GivenRows, by: Matching, settings: Settings, mode: UpsertMode) -> Write:
        return delete_keys(view, rows, by, settings, mode)

    def merge(self, view: View, source: Source, plan: Merge, settings: Settings, mode: Mode) -> Write:
        return merge(view, source, plan, settings, mode)

    def explain_merge(self, view: View, rows: object, plan: Merge) -> str:
        return explain(view, rows, plan)

    def rewrite(self, view: View, settings: Settings, work: Rewriting) -> Write:
        return rewrite(view, settings, work)

    def resolve(self, view: View, settings: Settings, work: Resolving) -> Write:
        return resolve(view, settings, work)

    def row_schema(self, rows: object, schema: Schema | None) -> pa.Schema:
        return incoming_schema(rows, schema)

    def without_untyped(self, rows: object, schema: Schema) -> object:
        return without_untyped(rows, schema)

    def count_fitting(self, rows: object, schema: Schema) -> int:
        return sum(conform(batch, schema).num_rows for batch in to_reader(rows, schema))


ARROW = ArrowEngine()
