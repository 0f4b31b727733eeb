"""Reads the files of a plan with Spark's own Parquet reader: pushdown and vectorised decoding stay.

    tasks → parts (files of the same columns) → relations → numbered → without deleted rows → filtered → the columns

Where the file of a row matters, the row carries a *mark* of the file: its size or a hash of its name, which the driver
has checked to be unique, as joins on integers are fast and joins on names are not. A row of any other file fails the
job. The driver processes no rows, and no row depends on the session's settings: they are set as reader options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField

from frazil.errors import CorruptMetadata, InvalidInput, StorageError, Unsupported
from frazil.expr import Filter
from frazil.format.arrow_schema import to_arrow_schema
from frazil.format.metadata import TableMetadata
from frazil.format.partitions import reaches_everything
from frazil.format.storage import Storage
from frazil.model import Content, DataFile
from frazil.on_spark import columns as conditions
from frazil.on_spark import paths
from frazil.on_spark.connector import check_reachable, connector_needed, connector_options
from frazil.on_spark.file_columns import (
    Columns,
    FileColumns,
    Projection,
    as_text,
    case_clash,
    identity_sources,
    lacking,
    read_schema,
    types_by_id,
)
from frazil.on_spark.hashing import distinct_hashes
from frazil.on_spark.session import (
    Frame,
    Session,
    checked,
    is_connect,
    local,
    setting,
    with_settings,
    without_column_origins,
)
from frazil.on_spark.types import spark_schema
from frazil.read.arrow import partition_values
from frazil.read.deletes import Deletes
from frazil.read.layout import columns_of
from frazil.read.plan import DeleteRef, FileTask, named_file
from frazil.read.scan import Scan

FILE, POSITION = "__frazil_file", "__frazil_pos"
_URI, _MARK, _SEQUENCE, _SCOPE = "__frazil_uri", "__frazil_mark", "__frazil_seq", "__frazil_scope"
_PATH, _SET, _GONE, _KEY = "__frazil_path", "__frazil_set", "__frazil_gone", "__frazil_key"
_GONE_SCOPE, _NUMBER = "__frazil_gone_scope", "__frazil_number"
UNEXPECTED_FILE = "Spark read an unexpected file, or one whose size or row count differs from the table's metadata"
Numbered = Literal["no", "number", "mark"]
_MOST_LISTED = 400
"""Up to this many files are listed in the query itself; more are listed in a relation."""
_LONG_BITS = 63
_LONGEST_FILE = 1 << 40
_BROADCAST_ROWS = 2_000_000
_READ_HERE_ROWS, _READ_HERE_FILES = 200_000, 200
"""Up to this many position deletes, in up to this many files, are read by the driver."""
_READERS = 8
_OPTIONS = {
    # A reader's option wins over the session's setting of the same name, also over one that changes later.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    # Folders named a=1 are not columns.
    "recursiveFileLookup": "true",
}
_LISTED_BY_DRIVER = 32
"""Spark lists up to this many paths without a job."""
_LISTING = {
    # Otherwise each path is a task of its own: 10,000 files take 20 s to list.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}
SparkColumn = Any
arrow: Any = pa
pc: Any = pyarrow.compute


def scan_to_spark(scan: Scan, spark: Session | None = None) -> Frame:
    """The rows of a scan, which stay those of its snapshot, as a native DataFrame."""
    session = local() if spark is None else checked(spark)
    frame = read_tasks(
        session, scan.tasks(), storage=scan._storage, metadata=scan._metadata, schema=scan._wanted, filtered=True
    )
    return frame if scan._limit is None else frame.limit(scan._limit)


def read_tasks(
    spark: Session,
    tasks: Sequence[FileTask],
    *,
    storage: Storage,
    metadata: TableMetadata,
    schema: Schema,
    filtered: bool = True,
    numbered: Numbered = "no",
) -> Frame:
    """The live rows of these files, as the schema's columns, in Spark's types for them.

    ``filtered``: only rows that match the tasks' residual filters. ``numbered``: with FILE, and POSITION, the row's
    number in its file. FILE is the index into ``tasks``, or the file's mark, which needs no join and which
    ``numbers_of`` maps to the index. Of the equality deletes on the same columns a task lists all that apply to it in
    its snapshot, or none.
    """
    _check_case(spark, columns_of(to_arrow_schema(schema), metadata.location, None) if schema.fields else ())
    if not tasks:
        return _empty(spark, schema, numbered)
    check_reachable(spark, metadata.location, storage)
    with without_column_origins():
        return _TaskReader(spark, tasks, storage, metadata, schema, filtered, numbered).frame()


def numbers_of(tasks: Sequence[FileTask]) -> dict[int, int]:
    """What FILE is in rows of these tasks that are numbered by mark → the index of the task."""
    return {each: number for number, said in enumerate(_FileMarks.of(tasks).values) for each in said}


def with_numbers(spark: Session, rows: Frame, tasks: Sequence[FileTask], numbers: Sequence[int] | None = None) -> Frame:
    """Rows that are numbered by mark, with the index of the task instead, or with the number that it has here."""
    found = numbers_of(tasks)
    given = found.values() if numbers is None else [numbers[each] for each in found.values()]
    listed = {FILE: arrow.array(found.keys(), pa.int64()), _NUMBER: arrow.array(given, pa.int32())}
    others = [name for name in rows.columns if name != FILE]
    return rows.join(_listed(spark, listed), FILE, "left").select(_required(_NUMBER).alias(FILE), *others)


def inside(rows: Frame, tasks: Sequence[FileTask], files: Collection[str]) -> Frame:
    """Those of the rows of these tasks, numbered by mark, that are in some of their files."""
    return rows.join(_marks_of(rows.sparkSession, tasks, files), FILE, "left_semi")


def outside(rows: Frame, tasks: Sequence[FileTask], files: Collection[str]) -> Frame:
    """The others."""
    return rows.join(_marks_of(rows.sparkSession, tasks, files), FILE, "left_anti") if files else rows


def _marks_of(spark: Session, tasks: Sequence[FileTask], files: Collection[str]) -> Frame:
    marks = [mark for mark, number in numbers_of(tasks).items() if tasks[number].file.file_path in files]
    return _listed(spark, {FILE: arrow.array(marks, pa.int64())})


@dataclass(frozen=True, slots=True)
class _FileMarks:
    """The marks of tasks: integers that identify a row's task, with the lowest bits free for the row's position."""

    values: tuple[tuple[int, ...], ...]
    """For each task the marks of its rows; several, as a path can be spelled in several ways."""
    longest: int
    """The largest row count of a file."""
    bits: int
    salt: int | None
    """Of the hash of the file's name; None: the mark is the file's size, which costs nothing per row."""

    @staticmethod
    def of(tasks: Sequence[FileTask]) -> _FileMarks:
        counts = [task.file.record_count for task in tasks]
        # The row count is unknown.
        longest = _LONGEST_FILE if min(counts) < 0 else max(counts)
        bits = max(0, longest - 1).bit_length()
        sizes = [task.file.file_size_in_bytes for task in tasks]
        if len(set(sizes)) == len(tasks) <= _MOST_LISTED and max(sizes).bit_length() + bits < _LONG_BITS:
            return _FileMarks(tuple((size << bits,) for size in sizes), longest, bits, None)
        copies = _copies(tasks)
        names = [_spelled(task, copy) for task, copy in zip(tasks, copies, strict=True)]
        salt, hashes = distinct_hashes({name for each in names for name in each}, longest)
        return _FileMarks(tuple(tuple(hashes[name] for name in each) for each in names), longest, bits, salt)

    def column(self, copy: int) -> SparkColumn:
        """Over a relation that has its _metadata. ``copy``: which of several tasks for the same file."""
        from pyspark.sql import functions as f

        if self.salt is None:
            return f.shiftleft(f.col("_metadata.file_size"), self.bits)
        uri = f.col("_metadata.file_path")
        return f.xxhash64(f.concat(uri, f.lit(_nth(copy))) if copy else uri, f.lit(self.salt))


def _spelled(task: FileTask, copy: int) -> list[str]:
    """A task's file as Spark may spell it, told apart from other tasks for the same file."""
    return [f"{uri}{_nth(copy)}" for uri in paths.uris(task.file.file_path)]


def _empty(spark: Session, schema: Schema, numbered: Numbered) -> Frame:
    from pyspark.sql.types import IntegerType, LongType

    made = spark_schema(schema)
    for field in made.fields:
        field.nullable = True
    if numbered != "no":
        made = made.add(FILE, LongType() if numbered == "mark" else IntegerType()).add(POSITION, LongType())
    return spark.createDataFrame([], made)


def _check_case(spark: Session, columns: Columns) -> None:
    clash = case_clash(columns)
    if clash is not None and setting(spark, "spark.sql.caseSensitive", "false") != "true":
        raise InvalidInput(
            f"The columns {clash[0]!r} and {clash[1]!r} are the same to this Spark session",
            advice='Run spark.conf.set("spark.sql.caseSensitive", "true") before reading, or use to_arrow()',
        )


# Relations


def relation(spark: Session, files: Sequence[str], schema: Any, storage: Storage) -> Frame:
    """Spark's own Parquet relation over these files, and nothing else. Raises StorageError when one is not there."""
    from pyspark.errors import AnalysisException

    hidden = next((path for path in files if paths.is_hidden(path)), None)
    if hidden is not None:
        raise Unsupported(
            f"Spark ignores files with names such as {hidden}", advice="Use to_arrow(), or rewrite the file"
        )
    options = {**_OPTIONS, **connector_options(files, storage)}
    with with_settings(spark, _LISTING if len(files) > _LISTED_BY_DRIVER else {}), connector_needed():
        try:
            frame = spark.read.schema(schema).options(**options).parquet(*map(paths.to_spark, files))
            if is_connect(spark):
                # There the files are listed only when something is asked for.
                _ = frame.schema
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            raise StorageError(
                "The table refers to a file that Spark cannot find",
                evidence=str(error).partition("\n")[0],
                advice="If it was deleted by hand, restore it, or roll the table back. On a cluster, every machine "
                "must see the table's storage",
            ) from error
    return frame


def _listed(spark: Session, rows: Mapping[str, Any]) -> Frame:
    """A small relation that goes to every executor."""
    from pyspark.sql import functions

    return functions.broadcast(spark.createDataFrame(arrow.table(dict(rows))))


@dataclass(frozen=True, slots=True)
class _FileGroup:
    """The common properties of files that one relation reads."""

    columns: Columns
    constants: frozenset[int]
    copy: int
    """Which one of the tasks for the same file: a relation reads each file once."""
    rules: _RowRules


@dataclass(frozen=True, slots=True)
class _RowRules:
    """The deletes and the filter that apply to rows after they are read."""

    positions: bool
    keys: frozenset[tuple[int, ...]]
    filter: int | None

    @property
    def is_numbered(self) -> bool:
        return self.positions or bool(self.keys)


class _TaskReader:
    """One call of read_tasks."""

    def __init__(
        self,
        spark: Session,
        tasks: Sequence[FileTask],
        storage: Storage,
        metadata: TableMetadata,
        schema: Schema,
        filtered: bool,
        numbered: Numbered,
    ) -> None:
        from pyspark.sql import functions

        self._f: Any = functions
        self._spark = spark
        self._tasks = tasks
        self._storage = storage
        self._metadata = metadata
        self._schema = schema
        self._numbered = numbered
        self._files = FileColumns(spark, storage, metadata)
        found = {id(task.residual): task.residual for task in tasks if filtered and task.residual is not None}
        self._filters: list[Filter] = list(found.values())
        self._key_fields = self._find_key_fields()
        self._scopes: dict[tuple[int, tuple[Any, ...]], int] = {}
        self._copies = _copies(tasks)

    @cached_property
    def _marks(self) -> _FileMarks:
        return _FileMarks.of(self._tasks)

    def frame(self) -> Frame:
        by_rules: dict[_RowRules, list[tuple[_FileGroup, list[int]]]] = {}
        for part, numbers in self._parts().items():
            by_rules.setdefault(part.rules, []).append((part, numbers))
        return reduce(lambda one, other: one.union(other), (self._rows(*each) for each in by_rules.items()))

    def _rows(self, rules: _RowRules, parts: list[tuple[_FileGroup, list[int]]]) -> Frame:
        frame = reduce(lambda one, other: one.union(other), (self._read(*each) for each in parts))
        numbers = [number for _, each in parts for number in each]
        if rules.positions:
            frame = self._without_positions(frame, numbers)
        if rules.keys:
            frame = self._with_numbers(frame, numbers)
        for field_ids in sorted(rules.keys):
            frame = self._without_keys(frame, field_ids, numbers)
        if rules.filter is not None:
            at = lambda column: self._f.col(_filter_column(column.field_id))  # noqa: E731
            frame = frame.where(conditions.condition(self._filters[rules.filter], at))
        if self._numbered == "number" and not rules.keys:
            # Last, for as few rows as possible.
            frame = self._with_numbers(frame, numbers)
        named = [self._f.col(f"c{i}").alias(field.name) for i, field in enumerate(self._schema.fields)]
        if self._numbered == "mark":
            named += [self._f.col(_MARK).alias(FILE), POSITION]
        elif self._numbered == "number":
            named += [FILE, POSITION]
        return frame.select(*named)

    # Parts

    def _parts(self) -> dict[_FileGroup, list[int]]:
        found: dict[_FileGroup, list[int]] = {}
        needed = dict(types_by_id([*self._schema.fields, *self._extra_fields().values()])).keys()
        layouts = self._files.of([task.file for task in self._tasks], needed)
        for columns in {id(each): each for each in layouts}.values():
            _check_case(self._spark, columns)
        lacked: dict[int, frozenset[int]] = {}
        identities = {spec_id: identity_sources(spec) for spec_id, spec in self._metadata.specs().items()}
        for number, (task, columns) in enumerate(zip(self._tasks, layouts, strict=True)):
            if id(columns) not in lacked:
                lacked[id(columns)] = self._lacking(columns)
            constants = lacked[id(columns)] & identities[task.file.spec_id] if task.file.partition else frozenset()
            found.setdefault(_FileGroup(columns, constants, self._copies[number], self._rules_of(task)), []).append(
                number
            )
        return found

    def _lacking(self, columns: Columns) -> frozenset[int]:
        extra = {field.field_id for field in self._extra_fields().values()}
        absent = set(lacking(columns, self._schema.fields)) | (extra - _ids(columns))
        return frozenset(absent)

    def _rules_of(self, task: FileTask) -> _RowRules:
        contents = {ref.file.content for ref in task.deletes}
        keys = frozenset(
            tuple(sorted(ref.file.equality_ids)) for ref in task.deletes if ref.file.content == Content.EQUALITY_DELETES
        )
        return _RowRules(Content.POSITION_DELETES in contents, keys, self._filter_of(task))

    def _filter_of(self, task: FileTask) -> int | None:
        if len(self._filters) <= 1:
            # Where statistics show that every row matches, the filter changes nothing, and one relation is enough.
            return 0 if self._filters else None
        return next((i for i, each in enumerate(self._filters) if each is task.residual), None)

    # Reading one part

    def _read(self, part: _FileGroup, numbers: list[int]) -> Frame:
        f = self._f
        fields = [*self._schema.fields, *self._extra_fields().values()]
        wanted = dict(types_by_id(fields))
        used = [column for column in part.columns if _ids((column,)) & wanted.keys()]
        files = [self._tasks[number].file for number in numbers]
        frame = relation(self._spark, [file.file_path for file in files], read_schema(used, wanted), self._storage)
        numbered = self._numbered != "no" or part.rules.is_numbered
        if numbered or part.constants:
            # Fields of _metadata are lost in a join: they are taken first.
            here = self._marks.column(part.copy)
            frame = frame.select("*", here.alias(_MARK), f.col("_metadata.row_index").alias(POSITION))
        if part.constants:
            frame = frame.join(self._list_files(numbers, part.constants), _MARK, "left")
        constants = {field_id: f.col(_constant_column(field_id)) for field_id in part.constants}
        project = Projection(part.columns, files[0].file_path, constants)
        made = [project.top(field).alias(f"c{i}") for i, field in enumerate(self._schema.fields)]
        made += [project.nested(field).alias(name) for name, field in self._extra_fields().items()]
        if part.constants and not numbered:
            frame = frame.where(f.isnotnull(_required(FILE)))
        if numbered:
            made += [_MARK, POSITION]
        return frame.select(*made)

    def _with_numbers(self, frame: Frame, numbers: list[int]) -> Frame:
        """Adds FILE, and the sequence number and partition that equality deletes compare."""
        joined = frame.join(self._list_files(numbers, frozenset()), _MARK, "left")
        others = [name for name in frame.columns if name != FILE]
        return joined.select(*others, _required(FILE), _SEQUENCE, _SCOPE)

    def _list_files(self, numbers: list[int], constants: frozenset[int]) -> Frame:
        spelled = [(each, number) for number in numbers for each in self._marks.values[number]]
        rows = [number for _, number in spelled]
        tasks = [self._tasks[row] for row in rows]
        made: dict[str, Any] = {
            _MARK: arrow.array([each for each, _ in spelled], pa.int64()),
            FILE: arrow.array(rows, pa.int32()),
            _SEQUENCE: arrow.array([task.sequence_number for task in tasks], pa.int64()),
            _SCOPE: arrow.array([self._scope(task.file) for task in tasks], pa.int32()),
        }
        for field_id in constants:
            made[_constant_column(field_id)] = arrow.array(self._partition_texts(field_id, tasks), pa.string())
        return _listed(self._spark, made)

    def _partition_texts(self, field_id: int, tasks: Iterable[FileTask]) -> list[str | None]:
        kind = self._type_of(field_id)
        known: dict[tuple[int, Any], str | None] = {}
        texts = []
        for task in tasks:
            key = (task.file.spec_id, task.file.partition)
            if key not in known:
                known[key] = as_text(partition_values(task.file, self._metadata)[field_id], kind)
            texts.append(known[key])
        return texts

    def _scope(self, file: DataFile) -> int:
        return self._scopes.setdefault((file.spec_id, file.partition), len(self._scopes))

    # Columns that are needed but not returned

    def _extra_fields(self) -> dict[str, NestedField]:
        found = {_key_column(field_id): field for field_id, field in self._key_fields.items()}
        for each in self._filters:
            for column in each.columns:
                field = NestedField(column.field_id, column.name, column.source, required=False)
                found[_filter_column(column.field_id)] = field
        return found

    def _find_key_fields(self) -> dict[int, NestedField]:
        wanted = {field_id for task in self._tasks for ref in task.deletes for field_id in ref.file.equality_ids}
        if not wanted:
            return {}
        found: dict[int, NestedField] = {}
        # The widest type that a column ever had, even if it has been dropped since.
        for schema in (*self._metadata.schemas().values(), self._metadata.schema()):
            for field_id in wanted & schema.field_ids:
                kind = schema.find_type(field_id)
                found[field_id] = NestedField(field_id, str(schema.find_column_name(field_id)), kind, required=False)
        for field_id in wanted - found.keys():
            raise CorruptMetadata(f"An equality delete compares the field {field_id}, which no schema of the table has")
        return found

    def _type_of(self, field_id: int) -> IcebergType:
        fields = [*self._schema.fields, *self._extra_fields().values()]
        return dict(types_by_id(fields))[field_id]

    # Deletes

    def _refs(self, numbers: Iterable[int], matches: Callable[[DataFile], bool]) -> list[DeleteRef]:
        found = {
            ref.file.file_path: ref for number in numbers for ref in self._tasks[number].deletes if matches(ref.file)
        }
        return list(found.values())

    def _without_positions(self, frame: Frame, numbers: list[int]) -> Frame:
        f = self._f
        refs = self._refs(numbers, lambda file: file.content == Content.POSITION_DELETES)
        count = sum(ref.file.record_count for ref in refs)
        if count <= _READ_HERE_ROWS and len(refs) <= _READ_HERE_FILES:
            gone = _listed(self._spark, {_GONE: self._positions_on_driver(numbers)})
        else:
            gone = self._positions_on_executors(refs, numbers)
            gone = f.broadcast(gone) if count < _BROADCAST_ROWS else gone
        key = f.col(_MARK).bitwiseXOR(f.col(POSITION))
        return self._checked_files(frame, numbers).join(gone, key == f.col(_GONE), "left_anti")

    def _checked_files(self, frame: Frame, numbers: list[int]) -> Frame:
        """The same rows; the job fails for a row of any other file, or with a position above the row count in the
        metadata, because deletes would not match it and it would silently reappear.

        As a filter, which the optimizer keeps; it drops a join when nothing turns out to be deleted.
        """
        f = self._f
        known = [each for number in numbers for each in self._marks.values[number]]
        if len(numbers) <= _MOST_LISTED:
            mine = f.col(_MARK).isin(*known)
            columns = None
        else:
            columns = frame.columns
            marks = arrow.array(known, pa.int64())
            frame = frame.join(_listed(self._spark, {_MARK: marks, _NUMBER: marks}), _MARK, "left")
            mine = f.col(_NUMBER).isNotNull()
        strange = f.raise_error(f.lit(UNEXPECTED_FILE)).cast("boolean")
        frame = frame.where(f.when(mine & (f.col(POSITION) < _long(self._marks.longest)), True).otherwise(strange))
        return frame if columns is None else frame.select(*columns)

    def _positions_on_driver(self, numbers: list[int]) -> Any:
        """The deleted rows as mark xor position. For so few, a Spark job takes longer."""
        deletes = Deletes(self._storage, self._metadata)

        def positions(number: int) -> tuple[memoryview, ...]:
            task = self._tasks[number]
            return deletes.positions(task.deletes, task.file.file_path).parts

        found = [arrow.array([], pa.int64())]
        with ThreadPoolExecutor(_READERS) as pool:
            for number, parts in zip(numbers, pool.map(positions, numbers), strict=True):
                for part in parts:
                    rows = arrow.Array.from_buffers(pa.int64(), len(part), [None, pa.py_buffer(part)])
                    rows = rows.filter(pc.and_(pc.greater_equal(rows, 0), pc.less(rows, self._marks.longest)))
                    marks = self._marks.values[number]
                    found += [pc.bit_wise_xor(rows, arrow.scalar(each, pa.int64())) for each in marks]
        return arrow.concat_arrays(found)

    def _positions_on_executors(self, refs: list[DeleteRef], numbers: list[int]) -> Frame:
        f = self._f
        gone = relation(
            self._spark, [ref.file.file_path for ref in refs], "file_path string, pos bigint", self._storage
        )
        # A file of other columns would read as NULLs, which take out nothing.
        lacks = f.raise_error(f.lit("A position delete file holds a row without file or position"))
        gone = gone.select(
            f.coalesce("file_path", lacks).alias(_PATH),
            f.coalesce("pos", lacks).alias(_GONE),
            f.col("_metadata.file_path").alias(_URI),
        )
        listed, pairs = self._position_pairs(numbers)
        gone = gone.join(listed, _PATH)
        if pairs is not None:
            gone = gone.join(pairs, [_URI, _SET])
        gone = gone.where((f.col(_GONE) >= 0) & (f.col(_GONE) < _long(self._marks.longest)))
        return gone.select(f.col(_MARK).bitwiseXOR(f.col(_GONE)).alias(_GONE))

    def _position_pairs(self, numbers: list[int]) -> tuple[Frame, Frame | None]:
        """The data files by path, and the delete files that apply to each; None: the path alone decides."""
        sets: dict[tuple[str, ...], int] = {}
        of: dict[int, int] = {}
        every_one_named = True
        for number in numbers:
            refs = [ref for ref in self._tasks[number].deletes if ref.file.content == Content.POSITION_DELETES]
            every_one_named = every_one_named and all(named_file(ref.file) is not None for ref in refs)
            of[number] = sets.setdefault(tuple(ref.file.file_path for ref in refs), len(sets))
        spelled = [(number, each) for number in numbers for each in self._marks.values[number]]
        listed = _listed(
            self._spark,
            {
                _PATH: arrow.array([self._tasks[number].file.file_path for number, _ in spelled], pa.string()),
                _MARK: arrow.array([each for _, each in spelled], pa.int64()),
                _SET: arrow.array([of[number] for number, _ in spelled], pa.int32()),
            },
        )
        if every_one_named or len(sets) == 1:
            return listed, None
        pairs = [(uri, number) for each, number in sets.items() for path in each for uri in paths.uris(path)]
        return listed, _listed(
            self._spark,
            {
                _URI: arrow.array([uri for uri, _ in pairs], pa.string()),
                _SET: arrow.array([number for _, number in pairs], pa.int32()),
            },
        )

    def _without_keys(self, frame: Frame, field_ids: tuple[int, ...], numbers: list[int]) -> Frame:
        refs = self._refs(
            numbers,
            lambda file: file.content == Content.EQUALITY_DELETES and tuple(sorted(file.equality_ids)) == field_ids,
        )
        everywhere = {spec_id for spec_id, spec in self._metadata.specs().items() if reaches_everything(spec)}
        for scoped in (False, True):
            chosen = [ref for ref in refs if (ref.file.spec_id not in everywhere) == scoped]
            if chosen:
                frame = self._anti_join(frame, field_ids, chosen, scoped)
        return frame

    def _anti_join(self, frame: Frame, field_ids: tuple[int, ...], refs: list[DeleteRef], scoped: bool) -> Frame:
        f = self._f
        gone = self._keys(field_ids, refs)
        names = [f"{_KEY}{field_id}" for field_id in field_ids]
        by = [*names, *([_GONE_SCOPE] if scoped else [])]
        # One row per key, with its latest delete.
        gone = gone.groupBy(*by).agg(f.max(_GONE).alias(_GONE))
        if sum(ref.file.record_count for ref in refs) < _BROADCAST_ROWS:
            gone = f.broadcast(gone)
        same = f.col(_SEQUENCE) < f.col(_GONE)
        if scoped:
            same = same & (f.col(_SCOPE) == f.col(_GONE_SCOPE))
        for field_id, name in zip(field_ids, names, strict=True):
            kind = self._key_fields[field_id].field_type
            same = same & _comparable(f.col(_key_column(field_id)), kind).eqNullSafe(f.col(name))
        return frame.join(gone, same, "left_anti")

    def _keys(self, field_ids: tuple[int, ...], refs: list[DeleteRef]) -> Frame:
        """The keys of equality delete files, with the sequence number and the partition of each."""
        f = self._f
        groups: dict[int, tuple[Columns, list[DeleteRef]]] = {}
        for ref, columns in zip(refs, self._files.of([ref.file for ref in refs]), strict=True):
            groups.setdefault(id(columns), (columns, []))[1].append(ref)
        frames = []
        fields = [self._key_fields[field_id] for field_id in field_ids]
        wanted = dict(types_by_id(fields))
        for columns, members in groups.values():
            missing = next((each for each in field_ids if each not in _ids(columns)), None)
            path = members[0].file.file_path
            if missing is not None:
                raise CorruptMetadata(f"The equality delete file {path} lacks its key column {missing}")
            used = [column for column in columns if _ids((column,)) & wanted.keys()]
            frame = relation(
                self._spark, [ref.file.file_path for ref in members], read_schema(used, wanted), self._storage
            )
            frame = frame.select("*", f.col("_metadata.file_path").alias(_URI))
            frame = frame.join(self._list_deletes(members), _URI, "left")
            project = Projection(columns, path, {})
            made = [
                _comparable(project.nested(field), field.field_type).alias(f"{_KEY}{field.field_id}")
                for field in fields
            ]
            frames.append(frame.select(*made, _required(_GONE), _GONE_SCOPE))
        return reduce(lambda one, other: one.union(other), frames)

    def _list_deletes(self, refs: list[DeleteRef]) -> Frame:
        rows = [(uri, ref) for ref in refs for uri in paths.uris(ref.file.file_path)]
        return _listed(
            self._spark,
            {
                _URI: arrow.array([uri for uri, _ in rows], pa.string()),
                _GONE: arrow.array([ref.sequence_number for _, ref in rows], pa.int64()),
                _GONE_SCOPE: arrow.array([self._scope(ref.file) for _, ref in rows], pa.int32()),
            },
        )


def _copies(tasks: Sequence[FileTask]) -> list[int]:
    """For each task, how many before it are for the same file."""
    seen: dict[str, int] = {}
    found = []
    for task in tasks:
        found.append(seen.get(task.file.file_path, 0))
        seen[task.file.file_path] = found[-1] + 1
    return found


def _nth(copy: int) -> str:
    return f"\0{copy}" if copy else ""


def _long(value: int) -> SparkColumn:
    from pyspark.sql import functions

    return functions.lit(value).cast("bigint")


def _required(column: str) -> SparkColumn:
    """A column from the list of files. The job fails for rows of files that are not in the list."""
    from pyspark.sql import functions

    unknown = functions.raise_error(functions.lit(UNEXPECTED_FILE))
    return functions.coalesce(functions.col(column), unknown).alias(column)


def _constant_column(field_id: int) -> str:
    return f"__frazil_v{field_id}"


def _filter_column(field_id: int) -> str:
    return f"f{field_id}"


def _key_column(field_id: int) -> str:
    return f"k{field_id}"


def _ids(columns: Columns) -> set[int | None]:
    return {each.field_id for each in columns} | {each for column in columns for each in _ids(column.children)}


def _comparable(value: SparkColumn, kind: IcebergType) -> SparkColumn:
    """Keys are equal when their bits are, as everywhere in Iceberg: Spark's joins take -0.0 for 0.0."""
    return value.cast("string") if isinstance(kind, FloatType | DoubleType) else value
