"""Rows in any supported form as a stream of Arrow batches.

Arrow data keeps its types, which ``conform`` casts. Python values (a list of dicts, a dict of columns) are built with
the table's types.
"""

from __future__ import annotations

import datetime as dt
import itertools
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, TypeGuard

import pyarrow as pa
from pyiceberg.schema import Schema
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
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from frazil.errors import InvalidInput, SchemaMismatch, Unsupported
from frazil.format.schemas import arrow_schema, match_name, suggestion
from frazil.stage.conform import Misfit, Problems, conform, conform_to

__all__ = ["conform", "conform_to", "incoming_schema", "opened", "to_reader", "without_untyped"]

_ACCEPTED = (
    "Give an Arrow table, batch, reader or dataset, a pandas or polars frame, anything else with __arrow_c_stream__, a "
    "list of dicts, or an iterator of dicts or Arrow batches"
)
_CHUNK = 16_384
"""Dicts of an iterator that become one batch."""


class DictRows:
    """An iterator of dicts, read once and a batch at a time, unless its columns are asked for before it is read."""

    def __init__(self, rows: Iterator[Any]) -> None:
        self._rows: Iterator[Any] | None = rows
        self._kept: list[Any] | None = None

    def kept(self) -> list[Any]:
        """All rows, in memory: their columns and types are known only at their end."""
        if self._kept is None:
            self._kept = list(self._once())
        return self._kept

    def reader(self, schema: Schema) -> pa.RecordBatchReader:
        if self._kept is not None:
            return to_reader(self._kept, schema)
        # Every batch has all columns of the table, whichever its dicts name.
        target = arrow_schema(schema)
        target = pa.schema([each.with_type(_buildable(each.type)).with_nullable(True) for each in target])
        return pa.RecordBatchReader.from_batches(target, self._batches(schema, target))

    def _batches(self, schema: Schema, target: pa.Schema) -> Iterator[pa.RecordBatch]:
        rows, first = self._once(), 0
        while chunk := list(itertools.islice(rows, _CHUNK)):
            _check_dicts(chunk, first)
            yield _filled(_from_dicts(chunk, schema), target)
            first += len(chunk)

    def _once(self) -> Iterator[Any]:
        rows, self._rows = self._rows, None
        if rows is None:
            raise InvalidInput(
                "These rows come from an iterator, which can be read only once",
                advice="Give a list to write them again",
            )
        return rows


def opened(rows: object) -> object:
    """The same rows; those that can be read only once as a RecordBatchReader, whose schema can be asked for first."""
    if isinstance(rows, pa.RecordBatchReader | pa.Table | pa.RecordBatch | Mapping | list | tuple) or _is_frame(rows):
        return rows
    if isinstance(rows, Iterator):
        return _opened_iterator(rows)
    if hasattr(rows, "__arrow_c_stream__") or _is_source(rows):
        return _arrow_reader(rows)
    return rows


def _opened_iterator(rows: Iterator[Any]) -> DictRows | pa.RecordBatchReader:
    first = next(rows, _NOTHING)
    if first is _NOTHING:
        return _from_batches(rows)
    rest = itertools.chain([first], rows)
    return DictRows(rest) if isinstance(first, Mapping) else _from_batches(rest)


def to_reader(rows: object, schema: Schema) -> pa.RecordBatchReader:
    """The rows as a stream of batches, in their own types. Raises InvalidInput, Unsupported.

    Python values are built with the table's types: a datetime without a zone counts as UTC where the column has one.
    """
    if isinstance(rows, Mapping):
        return _one_batch(_from_columns(rows, schema))
    if _is_dicts(rows):
        return _one_batch(_from_dicts(rows, schema))
    if isinstance(rows, Iterator) and not isinstance(rows, pa.RecordBatchReader):
        rows = _opened_iterator(rows)
    if isinstance(rows, DictRows):
        return rows.reader(schema)
    return _arrow_reader(rows, schema)


def has_python_values(rows: object) -> bool:
    """Whether the rows are dicts, or a dict of columns: their values have no types of their own."""
    return isinstance(rows, Mapping | DictRows) or _is_dicts(rows)


def incoming_schema(rows: object, schema: Schema | None = None) -> pa.Schema:
    """The columns of the rows, for schema evolution. Rows that can be read only once: pass ``opened(rows)``.

    Python values are inferred, except where the table's type (``schema``) holds them.
    """
    if isinstance(rows, pa.RecordBatchReader | pa.Table | pa.RecordBatch):
        return rows.schema
    if isinstance(rows, DictRows):
        rows = rows.kept()
    if isinstance(rows, Mapping):
        return _inferred(rows, schema)
    if _is_dicts(rows):
        return _inferred({name: [row.get(name) for row in rows] for name in _all_keys(rows)}, schema)
    if isinstance(rows, Iterator):
        raise InvalidInput("An iterator is read only once", advice="Make it a RecordBatchReader first: opened(rows)")
    return _arrow_reader(rows, schema).schema


def without_untyped(rows: object, schema: Schema) -> object:
    """The rows without all-null columns that the table lacks, whose type cannot be inferred.

    Schema evolution skips them. Rows that can be read only once: pass
    ``opened(rows)``, and read what this returns.
    """
    known = [each.name for each in schema.fields]
    if isinstance(rows, DictRows):
        rows = rows.kept()
    if isinstance(rows, Mapping):
        return {name: values for name, values in rows.items() if not _is_untyped(name, values, known)}
    if _is_dicts(rows):
        dicts: Sequence[Mapping[Any, Any]] = rows
        untyped = {name for name in _all_keys(dicts) if _is_untyped(name, [row.get(name) for row in dicts], known)}
        return [{name: row[name] for name in row if name not in untyped} for row in dicts] if untyped else rows
    columns = incoming_schema(rows, schema)
    kept = [
        position
        for position, each in enumerate(columns)
        if not pa.types.is_null(each.type) or match_name(each.name, known) is not None
    ]
    if not kept or len(kept) == len(columns):
        return rows
    if isinstance(rows, pa.RecordBatchReader):
        rest = pa.schema([columns.field(position) for position in kept])
        return pa.RecordBatchReader.from_batches(rest, (batch.select(kept) for batch in rows))
    return _arrow_reader(rows, schema).read_all().select(kept)


def _is_untyped(name: Any, values: Any, known: Sequence[str]) -> bool:
    if not isinstance(name, str) or match_name(name, known) is not None:
        return False
    if _has_type(values):
        return hasattr(values, "type") and pa.types.is_null(values.type)
    return isinstance(values, Sequence) and not isinstance(values, str | bytes) and all(v is None for v in values)


def _is_dicts(rows: Any) -> TypeGuard[Sequence[Mapping[Any, Any]]]:
    if not isinstance(rows, list | tuple):
        return False
    others = [position for position, row in enumerate(rows) if not isinstance(row, Mapping)]
    if others and len(others) < len(rows):
        _check_dicts(rows)
    return not others


def _check_dicts(rows: Sequence[Any], first: int = 0) -> None:
    """``first``: the number of the first row."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            wrong = type(row).__name__
            raise InvalidInput(
                f"Row {number} is a {wrong}, but other rows are dicts", advice="Give a dict for each row"
            )


def _filled(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The batch with all columns of the target, of its types; those that it lacks are null."""
    found = {match_name(name, target.names): batch.column(name) for name in batch.schema.names}
    arrays = [found.get(each.name, pa.nulls(batch.num_rows, each.type)) for each in target]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _one_batch(batch: pa.RecordBatch) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(batch.schema, [batch])


# Arrow and frames


def _module(rows: object) -> str:
    return type(rows).__module__.partition(".")[0]


def _is_frame(rows: object) -> bool:
    """Recognised by module name, so that their libraries are not imported."""
    return _module(rows) in ("pandas", "polars", "pyspark") and type(rows).__name__ == "DataFrame"


def _is_source(rows: object) -> bool:
    """A lazy source of rows without the Arrow protocol: a dataset or scanner of Arrow's, or a LazyFrame of polars'."""
    return type(rows).__name__ == "LazyFrame" if _module(rows) == "polars" else _is_dataset(rows)


def _is_dataset(rows: object) -> bool:
    module = sys.modules.get("pyarrow.dataset")
    return module is not None and isinstance(rows, module.Dataset | module.Scanner)


def _from_source(rows: Any) -> pa.RecordBatchReader:
    try:
        if _is_dataset(rows):
            found: pa.RecordBatchReader = rows.to_reader() if hasattr(rows, "to_reader") else rows.scanner().to_reader()
            return found
        if not hasattr(rows, "collect_batches"):
            return pa.RecordBatchReader.from_stream(rows.collect())
        schema = pa.RecordBatchReader.from_stream(rows.clear().collect()).schema
        frames = rows.collect_batches()
        batches = (batch for frame in frames for batch in pa.RecordBatchReader.from_stream(frame))
        return pa.RecordBatchReader.from_batches(schema, batches)
    except (pa.ArrowException, ValueError, TypeError, OSError) as error:
        raise InvalidInput(f"Cannot read rows from the {type(rows).__name__}: {_first_line(error)}") from error


def _arrow_reader(rows: Any, schema: Schema | None = None) -> pa.RecordBatchReader:
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if _is_source(rows):
        return _from_source(rows)
    if isinstance(rows, pa.Table):
        return rows.to_reader()
    if isinstance(rows, pa.RecordBatch):
        return _one_batch(rows)
    if _is_frame(rows) and _module(rows) == "pyspark":
        raise Unsupported(
            "Rows of a Spark DataFrame cannot be written by this version", advice="Collect them: df.toArrow()"
        )
    if _is_frame(rows) and _module(rows) == "pandas":
        return _from_pandas(rows, schema)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__arrow_c_array__"):
        return _imported(rows)
    if isinstance(rows, Iterator | list | tuple):
        return _from_batches(iter(rows))
    raise InvalidInput(f"Cannot read rows from a {type(rows).__name__}", advice=_ACCEPTED)


def _from_pandas(frame: Any, schema: Schema | None) -> pa.RecordBatchReader:
    known = None if schema is None else [each.name for each in schema.fields]
    try:
        if levels := _levels_with_data(frame, known):
            frame = frame.reset_index(level=levels)
        return pa.Table.from_pandas(frame, preserve_index=False).to_reader()
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInput(
            f"The pandas frame cannot be made into columns: {_first_line(error)}",
            advice="Give each column values of one type and a name of its own",
        ) from error


def _levels_with_data(frame: Any, known: Sequence[str] | None) -> list[int]:
    """The index levels named like a column of the table; other levels are not data.

    Of a table that is created from the frame (None), every level with a name is a column.
    """
    taken = [name for name in frame.columns if isinstance(name, str)]
    return [
        position
        for position, name in enumerate(frame.index.names)
        if isinstance(name, str)
        and (known is None or match_name(name, known) is not None)
        and match_name(name, taken) is None
    ]


def _imported(rows: Any) -> pa.RecordBatchReader:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
        return _one_batch(pa.record_batch(rows))
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidInput(
            f"Cannot read rows from the {type(rows).__name__}: {_first_line(error)}", advice=_ACCEPTED
        ) from error


_NOTHING = object()


def _from_batches(rows: Iterator[Any]) -> pa.RecordBatchReader:
    first = next(rows, _NOTHING)
    if first is _NOTHING:
        return pa.RecordBatchReader.from_batches(pa.schema([]), [])
    schema = _as_batches(first)[0]
    batches = (batch for each in itertools.chain([first], rows) for batch in _as_batches(each)[1])
    return pa.RecordBatchReader.from_batches(schema, _alike(batches, schema))


def _as_batches(rows: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    if isinstance(rows, pa.RecordBatch):
        return rows.schema, [rows]
    if isinstance(rows, pa.Table):
        return rows.schema, rows.to_batches()
    raise InvalidInput(f"Cannot read rows from an iterator of {type(rows).__name__}", advice=_ACCEPTED)


def _alike(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            raise SchemaMismatch(
                "The batches differ in their columns or types",
                evidence=f"The first has {_brief(schema)}, a later one {_brief(batch.schema)}",
                advice="Cast them to one schema",
            )
        yield batch


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


# Python values


def _all_keys(rows: Sequence[Mapping[Any, Any]]) -> list[Any]:
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _from_dicts(rows: Sequence[Mapping[Any, Any]], schema: Schema) -> pa.RecordBatch:
    # Empty dicts are rows of nulls; one column keeps their count.
    names = _all_keys(rows) or [schema.fields[0].name]
    return _from_columns({name: [row.get(name) for row in rows] for name in names}, schema)


def _from_columns(columns: Mapping[Any, Any], schema: Schema) -> pa.RecordBatch:
    problems = Problems()
    target = arrow_schema(schema)
    names = [each.name for each in schema.fields]
    arrays: dict[str, Any] = {}
    _check_keys(columns)
    feeds: dict[str, str] = {}
    for name, values in columns.items():
        found = match_name(name, names)
        if found is None:
            advice = f"{suggestion(name, names)} Leave it out, or call with merge_schema=True to add it"
            problems.add(name, Misfit("the table has no such column", advice))
            continue
        if found in feeds:
            problems.add(name, Misfit(f"{feeds[found]!r} and {name!r} name one column", "Keep one of them"))
            continue
        feeds[found] = name
        kind = schema.find_field(found).field_type
        try:
            arrays[name] = _array(values, kind, target.field(found).type)
        except Misfit as misfit:
            problems.add(found, misfit, kind)
    problems.raise_any()
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name}: {len(array)}" for name, array in arrays.items())
        raise InvalidInput("The columns have different lengths", evidence=lengths)
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _check_keys(columns: Iterable[Any]) -> None:
    for name in columns:
        if not isinstance(name, str):
            raise InvalidInput(
                f"The column name {_shown(name)} is of the type {type(name).__name__}, not text",
                advice="Write it in quotes",
            )


def _array(values: Any, kind: IcebergType, target: Any) -> Any:
    if _has_type(values):
        return _typed_array(values)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise Misfit(f"a {type(values).__name__} is not a column of values", "Give a list")
    adapt, plain = _adapter(kind), _buildable(target)
    adapted = [None if value is None else _adapted(adapt, value, row) for row, value in enumerate(values)]
    try:
        return pa.array(adapted, type=plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as error:
        raise _first_bad(adapted, plain, error) from error


def _buildable(kind: Any) -> Any:
    """The type with 16 plain bytes for a uuid: Arrow does not build nested extension types from Python values."""
    if isinstance(kind, pa.UuidType):
        return pa.binary(16)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_buildable(each.type)) for each in kind])
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_buildable(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_buildable(key.type)), item.with_type(_buildable(item.type)))
    return kind


def _has_type(values: Any) -> bool:
    return any(hasattr(values, name) for name in ("__arrow_c_array__", "__arrow_c_stream__", "dtype"))


def _typed_array(values: Any) -> Any:
    try:
        if hasattr(values, "__arrow_c_stream__"):
            return pa.chunked_array(values).combine_chunks()
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise Misfit(f"the values cannot be made into a column: {_first_line(error)}") from error


def _adapted(adapt: Callable[[Any], Any], value: Any, row: int) -> Any:
    try:
        return adapt(value)
    except Misfit as misfit:
        raise Misfit(f"{misfit.detail} (row {row})", misfit.advice) from misfit


def _first_bad(values: list[Any], target: Any, error: BaseException) -> Misfit:
    for row, value in enumerate(values):
        try:
            pa.array([value], type=target)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError) as cause:
            return Misfit(f"the value {_shown(value)} (row {row}) does not fit: {_first_line(cause)}")
    return Misfit(_first_line(error))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def _wrong(value: object, wanted: str, advice: str = "") -> Misfit:
    return Misfit(f"{_shown(value)} is a {type(value).__name__}, not {wanted}", advice)


def _checked(
    wanted: str, types: tuple[type, ...], barred: tuple[type, ...] = (), advice: str = ""
) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if isinstance(value, types) and not isinstance(value, barred):
            return value
        raise _wrong(value, wanted, advice)

    return check


def _timestamp(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        raise _wrong(value, "a datetime without a time zone", "Write value.astimezone(UTC).replace(tzinfo=None)")
    return _timestamptz(value)


def _timestamptz(value: Any) -> Any:
    if not isinstance(value, dt.datetime):
        raise _wrong(value, "a datetime", _parsing(value, "datetime"))
    if getattr(value, "nanosecond", 0):
        raise Misfit(f"{value} has nanoseconds, and Iceberg keeps microseconds", "Round it first: value.floor('us')")
    return value


def _parsing(value: object, kind: str) -> str:
    """How to parse a string as a date or time; empty for other values."""
    return f"Write datetime.{kind}.fromisoformat({_shown(value)})" if isinstance(value, str) else ""


def _date(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        raise _wrong(value, "a date", "Write value.date()")
    if not isinstance(value, dt.date):
        raise _wrong(value, "a date", _parsing(value, "date"))
    return value


def _time(value: Any) -> Any:
    if not isinstance(value, dt.time):
        raise _wrong(value, "a time", _parsing(value, "time"))
    return value


def _float(value: Any) -> Any:
    number = _checked("a number", (Real,), (bool,))(value)
    try:
        struct.pack("<f", float(number))
    except OverflowError as error:
        # Arrow would write infinity.
        raise Misfit(f"{_shown(value)} is beyond the range of float", "Make the column a double") from error
    return number


def _bytes(value: Any) -> Any:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return _checked("bytes", (bytes,))(value)


def _uuid(value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, bytes) and len(value) == 16:
        return value
    try:
        return uuid.UUID(_checked("a uuid", (str,))(value)).bytes
    except ValueError as error:
        raise Misfit(f"{_shown(value)} is not a uuid") from error


# Arrow would truncate a datetime to a date and a float to an integer, and accept strings as bytes.
_ADAPTERS: dict[type[IcebergType], Callable[[Any], Any]] = {
    IntegerType: _checked("a whole number", (Integral,), (bool,)),
    LongType: _checked("a whole number", (Integral,), (bool,)),
    FloatType: _float,
    DoubleType: _checked("a number", (Real,), (bool,)),
    DecimalType: _checked("a Decimal", (Decimal, int), (bool,), "Write Decimal('1.10')"),
    StringType: _checked("text", (str,)),
    DateType: _date,
    TimeType: _time,
    TimestampType: _timestamp,
    TimestamptzType: _timestamptz,
    BinaryType: _bytes,
    FixedType: _bytes,
    UUIDType: _uuid,
}


def _adapter(kind: IcebergType) -> Callable[[Any], Any]:
    """From a Python value to one that Arrow builds this type from without loss."""
    match kind:
        case StructType():
            return _struct_adapter(kind)
        case ListType():
            element = _nullable(_adapter(kind.element_type))
            return lambda value: [element(each) for each in _elements(value)]
        case MapType():
            key, item = _adapter(kind.key_type), _nullable(_adapter(kind.value_type))
            return lambda value: [(key(k), item(v)) for k, v in _pairs(value)]
        case BooleanType():
            return lambda value: value if type(value).__name__ in ("bool", "bool_") else _raise(_wrong(value, "a bool"))
    return _ADAPTERS[type(kind)]


def _raise(error: Exception) -> Any:
    raise error


def _nullable(adapt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else adapt(value)


def _struct_adapter(kind: StructType) -> Callable[[Any], Any]:
    fields = {each.name: _nullable(_adapter(each.field_type)) for each in kind.fields}

    def adapt(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value, "a dict")
        made = {}
        for name, inner in value.items():
            found = match_name(name, fields) if isinstance(name, str) else None
            if found is None:
                raise Misfit(f"the struct has no field {name!r}", suggestion(str(name), fields))
            if found in made:
                raise Misfit(f"two keys of {_shown(value)} name the field {found!r}", "Keep one of them")
            made[found] = fields[found](inner)
        return made

    return adapt


def _elements(value: Any) -> Iterable[Any]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _wrong(value, "a list")
    return value


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple) and all(isinstance(each, tuple | list) and len(each) == 2 for each in value):
        return value
    raise _wrong(value, "a dict")


def _inferred(columns: Mapping[Any, Any], schema: Schema | None) -> pa.Schema:
    _check_keys(columns)
    known = {} if schema is None else {each.name: each for each in schema.fields}
    target = None if schema is None else arrow_schema(schema)
    fields = []
    for name, values in columns.items():
        found = match_name(name, known)
        if (
            found is not None
            and target is not None
            and _holds(values, known[found].field_type, target.field(found).type)
        ):
            fields.append(pa.field(name, target.field(found).type))
        else:
            fields.append(pa.field(name, _infer(name, values)))
    return pa.schema(fields)


def _holds(values: Any, kind: IcebergType, target: Any) -> bool:
    if _has_type(values):
        return False
    try:
        _array(values, kind, target)
    except Misfit:
        return False
    return True


def _infer(name: str, values: Any) -> Any:
    try:
        return (_typed_array(values) if _has_type(values) else pa.array(values)).type
    except OverflowError as error:
        raise SchemaMismatch(
            f"The column {name!r} has whole numbers of more than 64 bits",
            advice="Make them Decimal, or text, or add the column with a type first",
        ) from error
    except (pa.ArrowException, ValueError, TypeError, Misfit) as error:
        raise SchemaMismatch(f"Cannot infer the type of the column {name!r}: {_first_line(error)}") from error
