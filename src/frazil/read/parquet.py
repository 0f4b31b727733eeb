"""Opening Parquet files, with errors that name the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from frazil.errors import CorruptMetadata, FrazilError, StorageError
from frazil.format.storage import Storage, is_local, storage_error
from frazil.model import DataFile


@contextlib.contextmanager
def opened(storage: Storage, file: DataFile) -> Iterator[pq.ParquetFile]:
    """The open file, checked against what its manifest says of it. Errors while it is read name it as well."""
    path = file.file_path
    try:
        with storage.open_input(path) as source:
            # Reading ahead pays where each read is a request; Spark's old INT96 timestamps count nanoseconds.
            remote = not is_local(path)
            with pq.ParquetFile(source, pre_buffer=remote, coerce_int96_timestamp_unit="us") as parquet:
                _check_rows(parquet, file)
                yield parquet
    except FrazilError as error:
        if isinstance(error, StorageError) and not isinstance(error, CorruptMetadata):
            raise StorageError(
                f"The table refers to the file {path}, which cannot be read",
                evidence=error.problem,
                advice="If it was deleted by hand or by another tool, restore it, or roll the table back",
            ) from error
        raise
    except pa.ArrowInvalid as error:
        raise CorruptMetadata(f"The file {path} is not a readable Parquet file", evidence=str(error)) from error
    except OSError as error:
        raise storage_error(error, f"Cannot read {path}") from error


def _check_rows(parquet: pq.ParquetFile, file: DataFile) -> None:
    held = parquet.metadata.num_rows
    if file.record_count >= 0 and held != file.record_count:
        raise CorruptMetadata(
            f"The file {file.file_path} holds {held} rows, but the table expects {file.record_count}",
            advice="It was changed after it was committed: restore it, or roll the table back",
        )
