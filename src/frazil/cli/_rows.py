"""Rows from a file: Parquet, CSV, JSON lines or Arrow IPC, read in batches where the format allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from frazil.cli._formats import RowFormat, format_of
from frazil.cli._json import read_lines
from frazil.errors import InvalidInput
from frazil.format.schemas import arrow_schema

Rows = pa.RecordBatchReader | list[dict[str, Any]]


@contextlib.contextmanager
def open_rows(path: Path, given: RowFormat | None, schema: Schema) -> Iterator[Rows]:
    """The file's rows. CSV and JSON have no types, so the table's columns determine them."""
    kind = format_of(path, given)
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}" if not path.exists() else f"{path} is not a file")
    try:
        with contextlib.ExitStack() as stack:
            yield _open(path, kind, schema, stack)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(f"{path} cannot be read as {kind}", evidence=str(error).splitlines()[0]) from error


def _open(path: Path, kind: RowFormat, schema: Schema, stack: contextlib.ExitStack) -> Rows:
    match kind:
        case RowFormat.PARQUET:
            file = stack.enter_context(pq.ParquetFile(path))
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        case RowFormat.CSV:
            # An empty cell is null in string columns as well: CSV cannot distinguish it from an empty string.
            convert = pacsv.ConvertOptions(column_types=_lent(arrow_schema(schema)), strings_can_be_null=True)
            return stack.enter_context(pacsv.open_csv(path, convert_options=convert))
        case RowFormat.JSON:
            return read_lines(path, schema)
        case RowFormat.ARROW:
            return _open_ipc(path, stack)


def _lent(columns: pa.Schema) -> dict[str, pa.DataType]:
    """Types for CSV, which has none. Nested types are not possible; a uuid is read as a string."""
    kinds = {each.name: each.type for each in columns}
    return {
        name: kind
        for name, kind in kinds.items()
        if not pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)
    }


def _open_ipc(path: Path, stack: contextlib.ExitStack) -> Rows:
    source = stack.enter_context(pa.memory_map(str(path)))
    try:
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return stack.enter_context(pa.ipc.open_stream(source))
    return pa.RecordBatchReader.from_batches(file.schema, (file.get_batch(i) for i in range(file.num_record_batches)))
