"""Any supported form of a schema as an Iceberg schema with ids, and its evolution by incoming columns.

Takes Arrow, PyIceberg and Spark schemas and Spark SQL DDL text. The types are format version 2's: nanosecond timestamps
become microseconds, and version 3's types are refused.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.format.arrow_schema import to_arrow_schema

MAX_DECIMAL_PRECISION = 38
V2_TYPES = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
DDL_EXAMPLE = "Write it as Spark SQL does: 'id bigint not null, ts timestamp, tags array<string>'"
TYPE_NAMES = (
    "Known types: boolean, int, bigint, float, double, decimal(p,s), string, binary, date, time, timestamp "
    "(with zone), timestamp_ntz (without), uuid, fixed(n), array<…>, map<…,…>, struct<name:type,…>"
)
_DOC_KEY = b"doc"
MAX_DEPTH = 50
"""Readers of metadata, Frazil's and other engines', walk types by recursion."""
_TOO_DEEP = f"The schema is nested more than {MAX_DEPTH} levels deep"
_FLATTEN = "Make the inner structs columns of their own, or keep them as JSON in a string column"


@dataclass(frozen=True, slots=True, eq=False)
class IdentityKey:
    """A cache key for values without a hash, equal to itself only. It keeps the value alive, so ids stay unique."""

    value: Any

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value


def to_schema(schema: object, *, keys: Sequence[str] = ()) -> Schema:
    """An Iceberg schema with fresh ids. ``keys`` become identifier fields, so not null. Raises InvalidInput."""
    try:
        fields = _checked_fields(schema)
    except RecursionError as error:
        raise InvalidInput(_TOO_DEEP, advice=_FLATTEN) from error
    identifiers = schema.identifier_field_ids if isinstance(schema, Schema) else []
    try:
        fresh = assign_fresh_schema_ids(Schema(*fields, identifier_field_ids=identifiers))
    except ValueError as error:
        raise InvalidInput(f"The schema is not valid: {error}") from error
    return _with_keys(fresh, keys) if keys else fresh


def _checked_fields(schema: object) -> tuple[NestedField, ...]:
    fields = _fields_of(schema)
    if not fields:
        raise InvalidInput("The schema has no columns", advice=DDL_EXAMPLE)
    _check_names(fields, "")
    _check_types(fields, "")
    return fields


def to_type(kind: object, name: str, *, depth: int = 0) -> IcebergType:
    """One column's type with provisional ids, from Spark DDL text or a type of PyIceberg, Arrow or Spark.

    ``name`` is the column's, for messages; ``depth`` is how many levels lie above it. Raises InvalidInput.
    """
    try:
        field = _typed_field(kind, name)
        _check_names([field], "")
        _check_types([field], "", depth)
    except RecursionError as error:
        raise InvalidInput(_TOO_DEEP, advice=_FLATTEN) from error
    return field.field_type


def _typed_field(kind: object, name: str) -> NestedField:
    if isinstance(kind, IcebergType):
        return NestedField(1, name, kind, required=False)
    if isinstance(kind, pa.DataType):
        return NestedField(1, name, from_arrow(kind, itertools.count(2), name), required=False)
    if isinstance(kind, str):
        quoted = name.replace("`", "``")
        from frazil.format.ddl import ddl_fields  # loads sqlglot

        fields = ddl_fields(f"`{quoted}` {kind}", itertools.count(1))
        if len(fields) != 1 or fields[0].required or fields[0].doc is not None:
            raise InvalidInput(f"{kind!r} is not a type alone", advice=TYPE_NAMES)
        return fields[0]
    if callable(getattr(kind, "jsonValue", None)) and callable(getattr(kind, "simpleString", None)):
        value = kind.jsonValue()  # type: ignore[attr-defined]
        return NestedField(1, name, _spark_type(value, itertools.count(2), name), required=False)
    raise InvalidInput(f"A {type(kind).__name__} is not a type of a column", advice=TYPE_NAMES)


def arrow_schema(schema: Schema) -> pa.Schema:
    """The Arrow schema of a table's rows, with Parquet field ids at all levels."""
    return _arrow_schema(IdentityKey(schema))


@lru_cache(maxsize=256)
def _arrow_schema(key: IdentityKey) -> pa.Schema:
    schema: Schema = key.value
    return to_arrow_schema(schema)


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"Did you mean 'x'?"`` or the list of known names."""
    names = list(known)
    lowered = {each.lower(): each for each in names}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    if close:
        return f"Did you mean {lowered[close[0]]!r}?"
    listed = ", ".join(repr(each) for each in names[:20])
    return f"There are: {listed}{', …' if len(names) > 20 else ''}." if names else "There are none."


def match_name(name: str, known: Iterable[str]) -> str | None:
    """The name as it is written in ``known``: exactly, or else the only one that differs by case alone."""
    names = list(known)
    if name in names:
        return name
    found = [each for each in names if each.lower() == name.lower()]
    return found[0] if len(found) == 1 else None


def _fields_of(schema: object) -> tuple[NestedField, ...]:
    ids = itertools.count(1)
    if isinstance(schema, Schema):
        return schema.fields
    if isinstance(schema, pa.Schema):
        return _arrow_fields(schema, ids, "")
    if isinstance(schema, str):
        from frazil.format.ddl import ddl_fields  # loads sqlglot

        return ddl_fields(schema, ids)
    if callable(getattr(schema, "jsonValue", None)) and callable(getattr(schema, "simpleString", None)):
        value = schema.jsonValue()  # type: ignore[attr-defined]
        if isinstance(value, dict) and value.get("type") == "struct":
            return _spark_fields(value, ids, "")
    raise InvalidInput(
        f"A {type(schema).__name__} is not a schema",
        advice="Give a pyarrow.Schema, a PyIceberg Schema, a Spark StructType, or DDL text: 'id bigint not null'",
    )


def _check_names(fields: Iterable[NestedField], path: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name:
            raise InvalidInput(f"A column{' of ' + path if path else ''} has no name")
        other = seen.get(field.name.lower())
        if other is not None:
            how = "is there twice" if other == field.name else f"differs from {join_path(path, other)!r} by case only"
            raise InvalidInput(
                f"The column {join_path(path, field.name)!r} {how}",
                advice="Give each column a name of its own: Spark and SQL do not tell upper from lower case",
            )
        seen[field.name.lower()] = field.name
        for inner, inner_path in _structs(field.field_type, join_path(path, field.name)):
            _check_names(inner.fields, inner_path)


def _structs(kind: IcebergType, path: str) -> Iterator[tuple[StructType, str]]:
    """The structs directly below a type, through lists and maps."""
    match kind:
        case StructType():
            yield kind, path
        case ListType():
            yield from _structs(kind.element_type, join_path(path, "element"))
        case MapType():
            yield from _structs(kind.key_type, join_path(path, "key"))
            yield from _structs(kind.value_type, join_path(path, "value"))


def _check_types(fields: Iterable[NestedField], path: str, depth: int = 0) -> None:
    for field in fields:
        name = join_path(path, field.name)
        if field.initial_default is not None or field.write_default is not None:
            raise Unsupported(
                f"The column {name!r} has a default, and tables of format version 2 have none",
                advice="Leave the default out, and put the value into the rows",
            )
        _check_type(field.field_type, name, depth + 1)


def _check_type(kind: IcebergType, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidInput(_TOO_DEEP, advice=_FLATTEN)
    match kind:
        case StructType():
            _check_types(_struct_type(kind.fields, path).fields, path, depth)
        case ListType():
            _check_type(kind.element_type, join_path(path, "element"), depth + 1)
        case MapType():
            _check_type(kind.key_type, join_path(path, "key"), depth + 1)
            _check_type(kind.value_type, join_path(path, "value"), depth + 1)
        case DecimalType():
            checked_decimal(kind.precision, kind.scale, path)
        case _ if not isinstance(kind, V2_TYPES):
            raise InvalidInput(
                f"The column {path!r} has the type {kind}, which Iceberg's format version 2 does not have",
                advice=TYPE_NAMES,
            )


def _with_keys(schema: Schema, keys: Sequence[str]) -> Schema:
    names = [keys] if isinstance(keys, str) else list(keys)
    top = {field.name: field for field in schema.fields}
    chosen: list[NestedField] = []
    for name in names:
        found = match_name(name, top) if isinstance(name, str) else None
        if found is None:
            raise InvalidInput(f"The key {name!r} is not a column", advice=suggestion(str(name), top))
        field = top[found]
        if not isinstance(field.field_type, PrimitiveType) or isinstance(field.field_type, FloatType | DoubleType):
            raise InvalidInput(
                f"The column {found!r} has the type {field.field_type} and cannot be a key",
                advice="Keys are whole numbers, texts, dates, times, decimals, uuids, binaries or booleans",
            )
        if field in chosen:
            raise InvalidInput(f"The key {found!r} is named twice")
        chosen.append(field)
    ids = {field.field_id for field in chosen}
    fields = [f.model_copy(update={"required": True}) if f.field_id in ids else f for f in schema.fields]
    return Schema(*fields, identifier_field_ids=[field.field_id for field in chosen])


def join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def checked_decimal(precision: int, scale: int, path: str) -> DecimalType:
    if not 1 <= precision <= MAX_DECIMAL_PRECISION or not 0 <= scale <= precision:
        raise InvalidInput(
            f"The column {path!r} has the type decimal({precision}, {scale})",
            advice=f"Iceberg's decimals have 1 to {MAX_DECIMAL_PRECISION} digits, of which up to all are the scale",
        )
    return DecimalType(precision, scale)


def _struct_type(fields: tuple[NestedField, ...], path: str) -> StructType:
    # Parquet has no groups without columns.
    if not fields:
        raise InvalidInput(f"The column {path!r} is a struct without fields")
    return StructType(*fields)


def checked_fixed(length: int, path: str) -> FixedType:
    if length < 1:
        raise InvalidInput(f"The column {path!r} has the type fixed({length})", advice="Give it a length of at least 1")
    return FixedType(length)


# Arrow


def _arrow_fields(fields: Iterable[pa.Field[Any]], ids: Iterator[int], path: str) -> tuple[NestedField, ...]:
    return tuple(_arrow_field(field, ids, path) for field in fields)


def _arrow_field(field: pa.Field[Any], ids: Iterator[int], path: str) -> NestedField:
    doc = (field.metadata or {}).get(_DOC_KEY)
    return NestedField(
        next(ids),
        field.name,
        from_arrow(field.type, ids, join_path(path, field.name)),
        required=not field.nullable,
        doc=doc.decode() if doc else None,
    )


def from_arrow(kind: Any, ids: Iterator[int], path: str) -> IcebergType:
    """The Iceberg type that holds every value of an Arrow type. Raises InvalidInput where there is none."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return from_arrow(kind.value_type, ids, path)
    if pa.types.is_struct(kind):
        return _struct_type(_arrow_fields(kind, ids, path), path)
    if pa.types.is_map(kind):
        key = from_arrow(kind.key_type, ids, join_path(path, "key"))
        value = from_arrow(kind.item_type, ids, join_path(path, "value"))
        return MapType(next(ids), key, next(ids), value, value_required=not kind.item_field.nullable)
    if is_arrow_list(kind):
        element = from_arrow(kind.value_type, ids, join_path(path, "element"))
        return ListType(next(ids), element, element_required=not kind.value_field.nullable)
    if isinstance(kind, pa.UuidType):
        return UUIDType()
    if isinstance(kind, pa.BaseExtensionType):
        return from_arrow(kind.storage_type, ids, path)
    return _arrow_primitive(kind, path)


def is_arrow_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_arrow_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def is_arrow_bytes(kind: pa.DataType) -> bool:
    """Bytes of any length."""
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _arrow_integer(kind: pa.DataType) -> PrimitiveType:
    fits_int = kind.bit_width < 32 or kind == pa.int32()
    return IntegerType() if fits_int else LongType()


# The first test that holds determines the type.
_ARROW_PRIMITIVES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, str], PrimitiveType]], ...] = (
    (pa.types.is_boolean, lambda _, __: BooleanType()),
    (pa.types.is_integer, lambda kind, _: _arrow_integer(kind)),
    (pa.types.is_float64, lambda _, __: DoubleType()),
    (pa.types.is_floating, lambda _, __: FloatType()),
    (pa.types.is_decimal, lambda kind, path: checked_decimal(kind.precision, kind.scale, path)),
    (is_arrow_text, lambda _, __: StringType()),
    (pa.types.is_date, lambda _, __: DateType()),
    (pa.types.is_time, lambda _, __: TimeType()),
    (pa.types.is_timestamp, lambda kind, _: TimestamptzType() if kind.tz else TimestampType()),
    (pa.types.is_fixed_size_binary, lambda kind, _: FixedType(kind.byte_width)),
    (is_arrow_bytes, lambda _, __: BinaryType()),
)


def _arrow_primitive(kind: pa.DataType, path: str) -> PrimitiveType:
    for asks, makes in _ARROW_PRIMITIVES:
        if asks(kind):
            return makes(kind, path)
    if pa.types.is_null(kind):
        raise InvalidInput(
            f"The column {path!r} has only nulls, so its type cannot be inferred",
            advice="Give the column a type, for example pa.field(name, pa.string())",
        )
    raise InvalidInput(f"The column {path!r} has the Arrow type {kind}, which Iceberg does not have", advice=TYPE_NAMES)


# Spark's StructType, by its JSON form


_SPARK_PRIMITIVES: dict[str, Callable[[], PrimitiveType]] = {
    "boolean": BooleanType,
    "byte": IntegerType,
    "short": IntegerType,
    "integer": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    "timestamp": TimestamptzType,
    "timestamp_ltz": TimestamptzType,
    "timestamp_ntz": TimestampType,
}
_SPARK_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_SPARK_TEXT = re.compile(r"(?:var)?char\(\d+\)|string collate \w+")


def _spark_fields(struct: Mapping[str, Any], ids: Iterator[int], path: str) -> tuple[NestedField, ...]:
    return tuple(
        NestedField(
            next(ids),
            field["name"],
            _spark_type(field["type"], ids, join_path(path, field["name"])),
            required=not field.get("nullable", True),
            doc=(field.get("metadata") or {}).get("comment"),
        )
        for field in struct["fields"]
    )


def _spark_type(kind: Any, ids: Iterator[int], path: str) -> IcebergType:
    if isinstance(kind, Mapping):
        match kind.get("type"):
            case "struct":
                return _struct_type(_spark_fields(kind, ids, path), path)
            case "array":
                element = _spark_type(kind["elementType"], ids, join_path(path, "element"))
                return ListType(next(ids), element, element_required=not kind.get("containsNull", True))
            case "map":
                key = _spark_type(kind["keyType"], ids, join_path(path, "key"))
                value = _spark_type(kind["valueType"], ids, join_path(path, "value"))
                required = not kind.get("valueContainsNull", True)
                return MapType(next(ids), key, next(ids), value, value_required=required)
        kind = kind.get("type")
    if kind in _SPARK_PRIMITIVES:
        return _SPARK_PRIMITIVES[kind]()
    if found := _SPARK_DECIMAL.fullmatch(str(kind)):
        return checked_decimal(int(found[1]), int(found[2]), path)
    if _SPARK_TEXT.fullmatch(str(kind)):
        return StringType()
    raise InvalidInput(f"The column {path!r} has the Spark type {kind}, which Iceberg does not have", advice=TYPE_NAMES)


# Schema evolution


def evolve(schema: Schema, last_column_id: int, incoming: pa.Schema) -> tuple[Schema, int] | None:
    """The schema with the incoming columns added and its types widened, and the last column id; None: nothing to do.

    Columns are matched by name. New ones are optional; int becomes long, float double, and decimals gain digits. What
    is required stays required. The result's ``schema_id`` is the caller's to set. Raises SchemaMismatch.
    """
    ids = itertools.count(last_column_id + 1)
    union = _SchemaUnion(lambda: next(ids), [])
    fields = union.struct(schema.fields, incoming, "")
    if union.problems:
        raise SchemaMismatch(
            "The table's schema cannot grow to take these rows: " + "; ".join(union.problems),
            advice="Cast the columns to the table's types, or give them other names",
        )
    if fields == schema.fields:
        return None
    return Schema(*fields, identifier_field_ids=schema.identifier_field_ids), next(ids) - 1


@dataclass(frozen=True, slots=True)
class _SchemaUnion:
    new_id: Callable[[], int]
    problems: list[str]

    def struct(
        self, fields: tuple[NestedField, ...], incoming: Iterable[pa.Field[Any]], path: str
    ) -> tuple[NestedField, ...]:
        union = {field.name: field for field in fields}
        for field in incoming:
            found = match_name(field.name, (each.name for each in fields))
            name = join_path(path, field.name)
            if found is not None:
                mine = union[found]
                union[found] = mine.model_copy(update={"field_type": self.type(mine.field_type, field.type, name)})
            elif field.name.lower() in {each.lower() for each in union}:
                self.problems.append(f"{name!r} matches more than one column by case")
            elif (new := self._new_field(field, path)) is not None:
                union[field.name] = new
        return tuple(union.values())

    def _new_field(self, field: pa.Field[Any], path: str) -> NestedField | None:
        try:
            made = _arrow_field(field, itertools.count(1), path)
            _check_names([made], path)
            _check_types([made], path, depth=path.count("."))
        except InvalidInput as error:
            self.problems.append(error.problem)
            return None
        except RecursionError:
            self.problems.append(_TOO_DEEP)
            return None
        field_id = self.new_id()
        # Declared to return a Schema; given a type, it returns one.
        kind: Any = assign_fresh_schema_ids(made.field_type, self.new_id)
        return NestedField(field_id, made.name, kind, required=False, doc=made.doc)

    def type(self, mine: IcebergType, given: Any, path: str) -> IcebergType:
        if pa.types.is_dictionary(given) or pa.types.is_run_end_encoded(given):
            return self.type(mine, given.value_type, path)
        if pa.types.is_null(given):
            return mine
        match mine:
            case StructType() if pa.types.is_struct(given):
                return StructType(*self.struct(mine.fields, given, path))
            case ListType() if is_arrow_list(given):
                element = self.type(mine.element_type, given.value_type, join_path(path, "element"))
                return mine.model_copy(update={"element_type": element})
            case MapType() if pa.types.is_map(given):
                self._same_key(mine, given, path)
                value = self.type(mine.value_type, given.item_type, join_path(path, "value"))
                return mine.model_copy(update={"value_type": value})
            case PrimitiveType():
                return self._primitive(mine, given, path)
        self.problems.append(f"{path!r} is {mine} and the rows have {given}")
        return mine

    def _same_key(self, mine: MapType, given: Any, path: str) -> None:
        # The specification does not let map keys change.
        if self.type(mine.key_type, given.key_type, join_path(path, "key")) != mine.key_type:
            self.problems.append(f"the keys of {path!r} are {mine.key_type} and the rows have {given.key_type}")

    def _primitive(self, mine: PrimitiveType, given: Any, path: str) -> PrimitiveType:
        try:
            theirs = from_arrow(given, itertools.count(1), path)
        except InvalidInput as error:
            self.problems.append(error.problem)
            return mine
        wider = _wider(mine, theirs)
        if wider is None:
            self.problems.append(f"{path!r} is {mine} and the rows have {given}")
        return wider or mine


# Pairs whose values may fit as they are; whether each one does is found when the rows are cast.
_MAY_FIT: dict[type[IcebergType], tuple[type[IcebergType], ...]] = {
    LongType: (IntegerType,),
    FloatType: (IntegerType,),
    DoubleType: (FloatType, IntegerType, LongType),
    DecimalType: (IntegerType, LongType),
    BinaryType: (FixedType,),
    FixedType: (BinaryType,),
    UUIDType: (StringType, BinaryType, FixedType),
}


def _wider(mine: PrimitiveType, theirs: IcebergType) -> PrimitiveType | None:
    """The type that holds both; None: there is none that Iceberg may promote mine to."""
    match mine, theirs:
        case IntegerType(), LongType():
            return LongType()
        case FloatType(), DoubleType():
            return DoubleType()
        case DecimalType(), DecimalType():
            whole = max(mine.precision - mine.scale, theirs.precision - theirs.scale)
            return DecimalType(min(whole + mine.scale, MAX_DECIMAL_PRECISION), mine.scale)
    if mine == theirs or isinstance(theirs, _MAY_FIT.get(type(mine), ())):
        return mine
    return None
