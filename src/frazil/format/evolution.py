"""Schemas that change: columns added, dropped, renamed, widened, moved. Pure functions from schema to schema.

Columns are bound to their ids first, so that a change applies to the same column on any schema it is replayed on
(rule P16). Each change returns the new schema, or None when there is nothing to do, and raises InvalidInput when the
schema cannot take it. The schema's own id is the caller's to set.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
)

from frazil.errors import InvalidInput
from frazil.format.schemas import match_name, suggestion
from frazil.format.statistics import COLUMN_MODE

if TYPE_CHECKING:
    from pyiceberg.table.name_mapping import NameMapping

Name = str | tuple[str, ...]
"""``"a.b"`` is the field b of a, ``"`a.b`"`` a column whose name has a dot; so are ``("a", "b")`` and ``("a.b",)``."""
Fields = tuple[NestedField, ...]

_PART = r"`(?:[^`]|``)+`|[^`.]+"
_PARTS = re.compile(_PART)
_DOTTED = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")
_ROOT = -1
# Table properties that end in a column's name.
_COLUMN_PROPERTIES = (COLUMN_MODE, "write.parquet.bloom-filter-enabled.column.")


@dataclass(frozen=True, slots=True)
class BoundColumn:
    """A column by its id; the name is the one it had when it was bound, for messages."""

    field_id: int
    name: str


@dataclass(frozen=True, slots=True)
class ColumnPosition:
    """A position among sibling columns: beside the first anchor that still exists, or else at that end.

    The further anchors are the neighbours of the first one, in order, so that the position survives a concurrent drop
    of the anchor.
    """

    side: Literal["after", "before"]
    anchors: tuple[int, ...] = ()


FIRST = ColumnPosition("after")
LAST = ColumnPosition("before")


# Finding


def split_name(name: Name) -> tuple[str, ...]:
    """The levels of a name. Raises InvalidInput if it is not a name."""
    if isinstance(name, tuple) and name and all(isinstance(part, str) and part for part in name):
        return name
    if not isinstance(name, str) or _DOTTED.fullmatch(name) is None:
        raise InvalidInput(
            f"{name!r} is not the name of a column",
            advice="Write 'x', 'a.b' for the field b of the struct a, or '`a.b`' for a name with a dot",
        )
    return tuple(part[1:-1].replace("``", "`") if part[0] == "`" else part for part in _PARTS.findall(name))


def one_name(name: object) -> str:
    """A name of one level, as a column gets it."""
    parts = split_name(name)  # type: ignore[arg-type]
    if len(parts) != 1:
        plain = ".".join(parts)
        raise InvalidInput(
            f"The name {plain!r} has a dot", advice=f"Write '`{plain}`' if that is meant; columns stay in their struct"
        )
    return parts[0]


def bind(schema: Schema, name: Name) -> BoundColumn:
    """The column of this name: exactly, or else the only one that differs by case alone. Raises InvalidInput."""
    found = _find(schema, name)
    if found is None:
        shown = name if isinstance(name, str) else ".".join(name)
        raise InvalidInput(f"There is no column {shown!r}", advice=suggestion(shown, _listed(schema)))
    return BoundColumn(found.field_id, full_name(schema, found.field_id))


def full_name(schema: Schema, field_id: int) -> str:
    return str(schema.find_column_name(field_id))


def _listed(schema: Schema) -> list[str]:
    return [field.name for field in schema.fields]


def _find(schema: Schema, name: Name) -> NestedField | None:
    parts = split_name(name)
    whole = {field.name: field for field in schema.fields}
    if isinstance(name, str) and name in whole:
        return whole[name]
    fields, found = schema.fields, None
    for part in parts:
        found = _named(part, fields)
        if found is None:
            break
        fields = _reachable(found.field_type)
    if found is None and isinstance(name, str):
        return _named(name, schema.fields)
    return found


def _named(name: str, fields: Fields) -> NestedField | None:
    spelt = match_name(name, (field.name for field in fields))
    return None if spelt is None else next(field for field in fields if field.name == spelt)


def _reachable(kind: IcebergType) -> Fields:
    """What a further level of a name may be; as in Iceberg, ``tags.x`` is short for ``tags.element.x``."""
    children = _children(kind)
    inner = children[-1].field_type if isinstance(kind, ListType | MapType) else None
    return (*children, *inner.fields) if isinstance(inner, StructType) else children


def column_path(schema: Schema, field_id: int) -> Fields | None:
    """The columns from the top down to this one, through lists and maps; None if it does not exist."""
    return _path(schema.fields, field_id)


def _path(fields: Fields, field_id: int) -> Fields | None:
    for field in fields:
        if field.field_id == field_id:
            return (field,)
        below = _path(_children(field.field_type), field_id)
        if below is not None:
            return (field, *below)
    return None


def _children(kind: IcebergType) -> Fields:
    match kind:
        case StructType():
            return kind.fields
        case ListType():
            return (kind.element_field,)
        case MapType():
            return (kind.key_field, kind.value_field)
    return ()


def _all_ids(field: NestedField) -> Iterator[int]:
    yield field.field_id
    for child in _children(field.field_type):
        yield from _all_ids(child)


@dataclass(frozen=True, slots=True)
class _ColumnLocation:
    """A column and the columns around it in the current schema."""

    field: NestedField
    above: Fields

    @property
    def owner(self) -> int:
        return self.above[-1].field_id if self.above else _ROOT


def _locate(schema: Schema, column: BoundColumn) -> _ColumnLocation:
    path = column_path(schema, column.field_id)
    if path is None:
        raise InvalidInput(f"The column {column.name!r} was dropped", advice="Re-read the table's schema")
    if _is_in_a_map_key(path):
        raise InvalidInput(f"The column {column.name!r} is part of a map's keys, which Iceberg does not let change")
    return _ColumnLocation(path[-1], path[:-1])


def _is_in_a_map_key(path: Fields) -> bool:
    return any(
        isinstance(above.field_type, MapType) and below.field_id == above.field_type.key_id
        for above, below in itertools.pairwise(path)
    )


def _struct_of(located: _ColumnLocation, schema: Schema, column: BoundColumn) -> Fields:
    """The fields of the struct that contains a column. Raises InvalidInput for elements, keys and values."""
    if not located.above:
        return schema.fields
    holder = located.above[-1].field_type
    if isinstance(holder, StructType):
        return holder.fields
    raise InvalidInput(
        f"{column.name!r} is the element, key or value of a list or map; it has no name or position to change",
        advice="Change the list or map itself, or a field inside",
    )


# Changing


def _edited(fields: Fields, owner: int, change: Callable[[int, Fields], Fields]) -> Fields:
    """The fields with ``change`` applied at every level, inner levels first."""
    deep = tuple(_retyped(field, _edited_type(field, change)) for field in fields)
    return change(owner, deep)


def _edited_type(field: NestedField, change: Callable[[int, Fields], Fields]) -> IcebergType:
    kind = field.field_type
    before = _children(kind)
    after = _edited(before, field.field_id, change) if before else before
    if after == before:
        return kind
    match kind:
        case ListType():
            (element,) = after
            return ListType(kind.element_id, element.field_type, element_required=element.required)
        case MapType():
            key, value = after
            return MapType(kind.key_id, key.field_type, kind.value_id, value.field_type, value_required=value.required)
    return StructType(*after)


def _retyped(field: NestedField, kind: IcebergType) -> NestedField:
    return field if kind is field.field_type else field.model_copy(update={"field_type": kind})


def _with_fields(schema: Schema, change: Callable[[int, Fields], Fields], keys: Iterable[int] | None = None) -> Schema:
    fields = _edited(schema.fields, _ROOT, change)
    identifiers = schema.identifier_field_ids if keys is None else list(keys)
    try:
        return Schema(*fields, identifier_field_ids=identifiers)
    except ValueError as error:
        # Such as a column `a.b` beside a field b of a, which Iceberg's names cannot tell apart.
        raise InvalidInput(f"The schema would not be valid: {error}") from error


def _with_field(schema: Schema, field_id: int, **changes: object) -> Schema:
    def change(_: int, fields: Fields) -> Fields:
        return tuple(f.model_copy(update=changes) if f.field_id == field_id else f for f in fields)

    return _with_fields(schema, change)


def _check_free(name: str, siblings: Iterable[NestedField], shown: str) -> None:
    taken = next((field.name for field in siblings if field.name.lower() == name.lower()), None)
    if taken is not None:
        how = "" if taken == name else f", as {taken!r}"
        raise InvalidInput(
            f"There is a column {shown!r} already{how}",
            advice="Choose another name: Spark and SQL do not tell upper from lower case",
        )


def _placed(fields: Fields, new: NestedField, place: ColumnPosition) -> Fields:
    others = [field for field in fields if field.field_id != new.field_id]
    positions = {field.field_id: position for position, field in enumerate(others)}
    anchor = next((positions[each] for each in place.anchors if each in positions), None)
    if place.side == "after":
        position = 0 if anchor is None else anchor + 1
    else:
        position = len(others) if anchor is None else anchor
    return (*others[:position], new, *others[position:])


def struct_for_new(schema: Schema, name: Name) -> tuple[BoundColumn | None, str]:
    """The struct a new column goes into, None for the table itself, and the column's own name. Raises InvalidInput."""
    parts = split_name(name)
    if len(parts) == 1:
        return None, parts[0]
    above, shown = parts[:-1], ".".join(parts)
    found = _find(schema, above)
    if found is None:
        raise InvalidInput(
            f"There is no column {'.'.join(above)!r} for {shown!r} to go into",
            advice=f"{suggestion('.'.join(above), _listed(schema))} If the dot is part of the name, write '`{shown}`'",
        )
    inside = _children(found.field_type)[-1] if isinstance(found.field_type, ListType | MapType) else found
    bound = BoundColumn(inside.field_id, full_name(schema, inside.field_id))
    if not isinstance(inside.field_type, StructType):
        raise InvalidInput(f"{bound.name!r} is a {inside.field_type}, not a struct, and takes no {parts[-1]!r}")
    _locate(schema, bound)
    return bound, parts[-1]


def position_beside(
    schema: Schema, owner: BoundColumn | None, side: Literal["after", "before"], name: Name, moved: int | None = None
) -> ColumnPosition:
    """The place beside a sibling, named alone (``"b"``) or in full (``"a.b"``). Raises InvalidInput."""
    siblings = schema.fields if owner is None else _struct_fields(schema, owner)
    anchor = _named(split_name(name)[0], siblings) if len(split_name(name)) == 1 else _find(schema, name)
    found = [position for position, field in enumerate(siblings) if field == anchor]
    if anchor is None or not found:
        where = "the table" if owner is None else repr(owner.name)
        known = [field.name for field in siblings]
        raise InvalidInput(f"There is no column {name!r} in {where} itself", advice=suggestion(str(name), known))
    if anchor.field_id == moved:
        raise InvalidInput(f"The column {anchor.name!r} cannot be moved {side} itself")
    neighbours = siblings[found[0] :: -1] if side == "after" else siblings[found[0] :]
    return ColumnPosition(side, tuple(field.field_id for field in neighbours if field.field_id != moved))


def owner_of(schema: Schema, column: BoundColumn) -> BoundColumn | None:
    """The struct a column is in; None: the table itself."""
    located = _locate(schema, column)
    _struct_of(located, schema, column)
    return BoundColumn(located.owner, full_name(schema, located.owner)) if located.above else None


def _struct_fields(schema: Schema, owner: BoundColumn) -> Fields:
    kind = _locate(schema, owner).field.field_type
    if not isinstance(kind, StructType):
        raise InvalidInput(f"The column {owner.name!r} is a {kind}, not a struct")
    return kind.fields


def add_column(
    schema: Schema,
    last_column_id: int,
    owner: BoundColumn | None,
    name: str,
    kind: IcebergType,
    *,
    doc: str | None = None,
    place: ColumnPosition = LAST,
) -> tuple[Schema, int] | None:
    """A new optional column with fresh ids, and the last id given out. None: it is there, with this very type."""
    siblings = schema.fields if owner is None else _struct_fields(schema, owner)
    shown = name if owner is None else f"{owner.name}.{name}"
    same = next((field for field in siblings if field.name == name), None)
    if same is not None and same_type(same.field_type, kind):
        return None
    if same is not None:
        raise InvalidInput(
            f"There is a column {shown!r} already, as {same.field_type} and not {kind}",
            advice="Choose another name, or use the column as it is",
        )
    _check_free(name, siblings, shown)
    ids = itertools.count(last_column_id + 1)
    new_id = next(ids)
    # Declared to return a Schema; given a type, it returns one.
    fresh: Any = assign_fresh_schema_ids(kind, lambda: next(ids))
    new = NestedField(new_id, name, fresh, required=False, doc=doc)
    target = _ROOT if owner is None else owner.field_id
    changed = _with_fields(schema, lambda at, fields: _placed(fields, new, place) if at == target else fields)
    return changed, next(ids) - 1


def drop_columns(schema: Schema, columns: Iterable[BoundColumn]) -> Schema | None:
    locations = [
        (column, _locate(schema, column)) for column in columns if column_path(schema, column.field_id) is not None
    ]
    wanted = {located.field.field_id for _, located in locations}
    # What is inside a dropped struct goes with it.
    gone = {
        located.field.field_id for _, located in locations if not wanted & {each.field_id for each in located.above}
    }
    for column, located in locations:
        _struct_of(located, schema, column)
        keys = [full_name(schema, each) for each in _all_ids(located.field) if each in schema.identifier_field_ids]
        if keys:
            raise InvalidInput(
                f"The column {column.name!r} cannot be dropped: {', '.join(keys)} is a key of the table",
                advice="Choose other keys first, with set_keys([...])",
            )
    if not gone:
        return None

    def change(at: int, fields: Fields) -> Fields:
        kept = tuple(field for field in fields if field.field_id not in gone)
        if fields and not kept:
            holder = "The table" if at == _ROOT else f"The struct {full_name(schema, at)!r}"
            raise InvalidInput(
                f"{holder} would be left without columns",
                advice="Drop the whole table or struct, or add a column first",
            )
        return kept

    return _with_fields(schema, change)


def rename_column(schema: Schema, column: BoundColumn, old: str, new: str) -> Schema | None:
    located = _locate(schema, column)
    siblings = _struct_of(located, schema, column)
    if located.field.name == new:
        return None
    if located.field.name != old:
        raise InvalidInput(
            f"The column {column.name!r} was renamed to {located.field.name!r}",
            advice="Rename it by that name",
        )
    _check_free(new, (field for field in siblings if field.field_id != column.field_id), new)
    return _with_field(schema, column.field_id, name=new)


def widen_column(schema: Schema, column: BoundColumn, kind: IcebergType) -> Schema | None:
    """The column with a type that holds more values; None: it already holds all those of ``kind``."""
    mine = _locate(schema, column).field.field_type
    if mine == kind or can_widen(kind, mine):
        return None
    if not can_widen(mine, kind):
        raise InvalidInput(
            f"The column {column.name!r} is {mine}, which cannot become {kind}",
            advice="int becomes long, float becomes double, and decimals gain digits before the point",
        )
    return _with_field(schema, column.field_id, field_type=kind)


def can_widen(mine: IcebergType, wider: IcebergType) -> bool:
    """Whether the specification lets a column of one type become another ("Schema Evolution")."""
    match mine, wider:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return mine.scale == wider.scale and mine.precision < wider.precision
    return False


def move_column(schema: Schema, column: BoundColumn, place: ColumnPosition) -> Schema | None:
    located = _locate(schema, column)
    _struct_of(located, schema, column)

    def change(at: int, fields: Fields) -> Fields:
        if at != located.owner:
            return fields
        return _placed(fields, next(field for field in fields if field.field_id == column.field_id), place)

    moved = _with_fields(schema, change)
    return None if moved.fields == schema.fields else moved


def make_optional(schema: Schema, column: BoundColumn) -> Schema | None:
    field = _locate(schema, column).field
    if field.optional:
        return None
    keys = [full_name(schema, each) for each in _all_ids(field) if each in schema.identifier_field_ids]
    if keys:
        raise InvalidInput(
            f"The column {column.name!r} cannot become optional: {', '.join(keys)} is a key, and keys are never null",
            advice="Choose other keys first, with set_keys([...])",
        )
    return _with_field(schema, column.field_id, required=False)


def make_required(schema: Schema, column: BoundColumn) -> Schema | None:
    """The column required; None: it is. Whether rows hold nulls is for the caller to check."""
    located = _locate(schema, column)
    if located.field.required:
        return None
    if any(not isinstance(above.field_type, StructType) for above in located.above):
        raise InvalidInput(
            f"The column {column.name!r} is inside a list or map and cannot become required",
            advice="Make a new table with it, and insert the rows",
        )
    optional = next((full_name(schema, above.field_id) for above in located.above if above.optional), None)
    if optional is not None:
        raise InvalidInput(
            f"The column {column.name!r} is in {optional!r}, which may be null",
            advice=f"Make {optional!r} required first",
        )
    return _with_field(schema, column.field_id, required=True)


def optional_path(schema: Schema, column: BoundColumn) -> tuple[BoundColumn, ...]:
    """The column, if it may be null, and the structs around it that may be, outermost first."""
    path = column_path(schema, column.field_id) or ()
    return tuple(BoundColumn(each.field_id, full_name(schema, each.field_id)) for each in path if each.optional)


def set_doc(schema: Schema, column: BoundColumn, doc: str | None) -> Schema | None:
    located = _locate(schema, column)
    _struct_of(located, schema, column)
    return None if located.field.doc == doc else _with_field(schema, column.field_id, doc=doc)


def set_keys(
    schema: Schema, columns: tuple[BoundColumn, ...], becoming_required: tuple[BoundColumn, ...] = ()
) -> Schema | None:
    """The schema with these identifier fields, as the specification allows them ("Identifier Field IDs").

    ``becoming_required``: columns that become required with it, the outermost first.
    """
    for column in becoming_required:
        schema = make_required(schema, column) or schema
    for column in columns:
        _check_key(_locate(schema, column), column)
    ids = [column.field_id for column in columns]
    if set(ids) == set(schema.identifier_field_ids):
        return None
    return _with_fields(schema, lambda _, fields: fields, keys=ids)


def _check_key(located: _ColumnLocation, column: BoundColumn) -> None:
    kind = located.field.field_type
    if not isinstance(kind, PrimitiveType) or isinstance(kind, FloatType | DoubleType):
        raise InvalidInput(
            f"The column {column.name!r} has the type {kind} and cannot be a key",
            advice="Keys are whole numbers, texts, dates, times, decimals, uuids, binaries or booleans",
        )
    if any(not isinstance(above.field_type, StructType) for above in located.above):
        raise InvalidInput(f"The column {column.name!r} is inside a list or map and cannot be a key")
    nullable = [field.name for field in (*located.above, located.field) if field.optional]
    if nullable:
        raise InvalidInput(
            f"The column {column.name!r} cannot be a key: {nullable[0]!r} may be null",
            advice=f"Make it required first: require_column({nullable[0]!r})",
        )


# What depends on a schema


def same_type(mine: IcebergType, other: IcebergType) -> bool:
    """Whether two types are the same but for ids and comments."""
    if isinstance(mine, PrimitiveType) or isinstance(other, PrimitiveType):
        return mine == other
    left, right = _children(mine), _children(other)
    return (
        type(mine) is type(other)
        and len(left) == len(right)
        and all(
            (a.name, a.required) == (b.name, b.required) and same_type(a.field_type, b.field_type)
            for a, b in zip(left, right, strict=True)
        )
    )


def same_schema(mine: Schema, other: Schema) -> bool:
    """Whether two schemas differ by their own id at most."""
    return mine.fields == other.fields and set(mine.identifier_field_ids) == set(other.identifier_field_ids)


def mapping_after(mapping: NameMapping, before: Schema, after: Schema) -> str:
    """The name mapping with the new columns and the new names; files written under the old names stay readable."""
    from pyiceberg.table.name_mapping import update_mapping

    # Private in PyIceberg, whose own schema update keeps the same account of parents.
    parents = after._lazy_id_to_parent
    new = after.field_ids - before.field_ids
    adds: dict[int, list[NestedField]] = defaultdict(list)
    for field_id in sorted(new):
        parent = parents.get(field_id, _ROOT)
        if parent not in new:
            adds[parent].append(after.find_field(field_id))
    fields = {field_id: after.find_field(field_id) for field_id in after.field_ids - new}
    renamed = {key: field for key, field in fields.items() if before.find_field(key).name != field.name}
    # A copy, as PyIceberg appends names to the given lists, which a cached head shares.
    return update_mapping(mapping.model_copy(deep=True), renamed, adds).model_dump_json()


def column_properties_after(
    properties: Mapping[str, str], before: Schema, after: Schema
) -> tuple[dict[str, str], list[str]]:
    """Properties to set and to remove so that those named after a column follow it. Iceberg Java refuses strays."""
    ids = {name: field_id for field_id, name in before._lazy_id_to_name.items()}
    moved: dict[str, str] = {}
    gone: list[str] = []
    for key, value in properties.items():
        prefix = next((each for each in _COLUMN_PROPERTIES if key.startswith(each)), None)
        name = key.removeprefix(prefix) if prefix is not None else ""
        if name not in ids:
            continue
        now = after.find_column_name(ids[name])
        if now != name:
            gone.append(key)
        if now is not None and now != name:
            moved[f"{prefix}{now}"] = value
    # Two columns that swap names swap their properties.
    return moved, [key for key in gone if key not in moved]
