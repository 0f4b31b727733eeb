"""A table as the user holds it. It is a name: every call reads the head; only a Scan pins a snapshot."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from frazil.commit.context import OnPhase
from frazil.commit.group import GROUP_SIZE
from frazil.commit.intents import SinkMark
from frazil.commit.loop import commit
from frazil.commit.operations import Identity, MetadataChange, Operation, Write, digest
from frazil.commit.results import find_commit
from frazil.commit.retry import Retry, from_properties
from frazil.commit.summaries import commits_of
from frazil.errors import InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.format.storage import Storage
from frazil.model import Commit, Ident, SharedCommit
from frazil.on_spark.session import chosen as chosen_session
from frazil.read.changes import Moment
from frazil.runtime import Runtime
from frazil.sink import PREFIX, Mark, checked_id, judge, query_of
from frazil.verbs import Call, Verbs, WriteOptions

if TYPE_CHECKING:
    from frazil.lake import Lake


_log = logging.getLogger("frazil")


class Table(Verbs):
    """A table of a lake. Safe to share between threads; pickles as a name that opens its lake again."""

    def __init__(self, lake: Lake, ident: Ident) -> None:
        self._lake = lake
        self._ident = ident

    @property
    def name(self) -> str:
        return str(self._ident)

    def __repr__(self) -> str:
        return f"Table({self.name!r} in {self._lake.uri})"

    @property
    def metadata_location(self) -> str:
        return self._lake.catalog.load(self._ident).location

    def pyiceberg(self) -> Any:
        """The same table as PyIceberg's, for everything that is not here yet."""
        return self._lake.pyiceberg().load_table((*self._ident.namespace, self._ident.name))

    # Streams

    def stream_sink(
        self,
        id: str,  # noqa: A002 - the surface is fixed
        mode: Literal["append", "upsert"] | SinkWrite = "append",
        **options: Unpack[WriteOptions],
    ) -> StreamSink:
        """A function for ``foreachBatch`` that writes each micro-batch exactly once.

        ``id`` names the stream for good: restarts, copies of checkpoints and expired snapshots do not make it forget
        what it has written. ``mode`` may be a function of this table and the batch that makes one write. Waits are
        short by default (``Retry.streaming()``), and rows that somebody deletes meanwhile stay (``on_deleted="keep"``).
        """
        if mode not in ("append", "upsert") and not callable(mode):
            raise InvalidInput(f"mode must be 'append', 'upsert' or a function, not {mode!r}")
        given: WriteOptions = {"retry": Retry.streaming(), **options}
        if mode == "append":
            given = {"on_deleted": "keep", **given}
        return StreamSink(self, checked_id(id), mode, given)

    def stream_from(
        self,
        spark: Any = None,
        since: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        skip_deletes: bool = False,
        skip_overwrites: bool = False,
        max_files: int | None = None,
        max_rows: int | None = None,
    ) -> Any:
        """A streaming DataFrame of the rows that are appended to main, exactly once for each checkpoint.

        It begins after the snapshot ``since`` (an id, or a time); None: with all rows of the oldest snapshot that is
        kept, as Iceberg does. Compactions are passed over. A snapshot that takes rows out fails the stream, unless
        such are to be left out: ``skip_deletes`` those that only delete, ``skip_overwrites`` those that also add, whose
        new rows are left out, too. ``max_files`` and ``max_rows`` bound a micro-batch by whole snapshots. Spark's
        workers need this package installed.
        """
        session = chosen_session(spark, self._spark)
        self._lake.register(session)
        chosen: dict[str, object] = {
            "since": since.isoformat() if isinstance(since, dt.datetime) else since,
            "columns": None if columns is None else ", ".join(columns),
            "skip_deletes": skip_deletes,
            "skip_overwrites": skip_overwrites,
            "max_files": max_files,
            "max_rows": max_rows,
        }
        options = {key: str(value) for key, value in chosen.items() if value is not None}
        reader = session.readStream.format("frazil").options(**self._lake.spark_options(), **options)
        return reader.load(self.name)

    # Inner workings

    @property
    def _storage(self) -> Storage:
        return self._lake.storage

    @property
    def _runtime(self) -> Runtime:
        return self._lake.runtime

    @property
    def _spark(self) -> Any:
        return self._lake.spark

    def _metadata(self) -> TableMetadata:
        return self._lake.catalog.load(self._ident).metadata

    def _shared_commits(self, metadata: TableMetadata) -> Mapping[int, tuple[SharedCommit, ...]]:
        numbers = [each.sequence_number for each in metadata.snapshots() if GROUP_SIZE in each.summary]
        log = self._lake.catalog.changes
        if not numbers or log is None:
            return {}
        return commits_of(log.find(metadata.uuid, min(numbers) - 1, max(numbers)))

    def _identity(self, commit_id: str | None, verb: str, **parameters: object) -> Identity:
        if commit_id is not None and (not isinstance(commit_id, str) or not commit_id.strip() or len(commit_id) > 200):
            raise InvalidInput(f"commit_id must be a text of 1 to 200 characters, not {commit_id!r}")
        return Identity(
            commit_id=commit_id if commit_id is not None else str(self._lake.runtime.new_uuid()),
            digest=digest(verb, **parameters),
            given=commit_id is not None,
        )

    def _find(self, identity: Identity, metadata: TableMetadata, branch: str) -> Commit | None:
        self._lake.check_writable()
        return find_commit(self._lake.catalog, metadata, identity, branch) if identity.given else None

    def _finish(self, call: Call, write: Write) -> Commit:
        before = () if write.is_empty else call.before
        write = replace(write, own_snapshot=call.own_snapshot)
        done = self._commit([*before, write], call.identity, call.retry, call.on_phase)
        return replace(done, elapsed=self._lake.runtime.monotonic() - call.started, engine=call.engine.name)

    def _prepare(self, call: Call, change: MetadataChange) -> TableMetadata:
        self._commit([change], self._identity(None, change.name), call.retry, None)
        return self._metadata()

    def _change(self, change: MetadataChange, identity: Identity, base: TableMetadata, retry: Retry | None) -> Commit:
        return self._commit([change], identity, retry or _default_retry(base), None)

    def _commit(
        self, operations: Sequence[Operation], identity: Identity, retry: Retry, on_phase: OnPhase | None
    ) -> Commit:
        return commit(self._lake.commit_context(self._ident, on_phase), operations, identity, retry)


SinkWrite = Callable[["Table", Any], Commit]
"""What a sink does with a batch: one write to the table it is given."""


@dataclass(frozen=True, slots=True)
class StreamSink:
    """Call it with a micro-batch and its id. It pickles, as Spark Connect wants it to."""

    _table: Table
    _id: str
    _mode: Literal["append", "upsert"] | SinkWrite
    _options: WriteOptions

    def __call__(self, batch: Any, batch_id: int) -> Commit | None:
        """Write the batch; None: it was written before, or holds no row."""
        key = f"{PREFIX}{self._id}"
        text = self._table._metadata().properties.get(key)
        mark, query = Mark.parse(text, key), query_of(batch)
        if judge(self._id, mark, batch_id, query) == "skip":
            _log.warning("The sink %s has written batch %s before; it is not written again", self._id, batch_id)
            return None
        target = _SinkTable(self._table, SinkMark(key, text, str(Mark(batch_id, query))))
        if self._mode == "append":
            return target.append(batch, **self._options)
        if self._mode == "upsert":
            return target.upsert(batch, **self._options)
        return self._mode(target, batch)


class _SinkTable(Table):
    """A table whose one write moves a sink's mark along."""

    def __init__(self, table: Table, mark: SinkMark) -> None:
        super().__init__(table._lake, table._ident)
        self._mark: SinkMark | None = mark

    def _finish(self, call: Call, write: Write) -> Commit:
        if self._mark is None:
            raise InvalidInput(
                "A sink makes one write for each batch, and this is the second",
                advice="Do it in one merge(), or write the rest through a sink of its own",
            )
        moved = MetadataChange(call.view.metadata.uuid, self._mark, "sink")
        self._mark = None
        return super()._finish(replace(call, before=(*call.before, moved)), write)


def _default_retry(metadata: TableMetadata) -> Retry:
    # A bad commit.retry.* property must not stop the very change that sets it right.
    try:
        return from_properties(metadata.properties)
    except InvalidInput:
        return Retry()
