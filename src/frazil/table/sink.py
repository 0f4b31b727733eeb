"""A stream's progress in a table: one high-water mark for each sink, kept in the table itself (rule P11).

Spark calls a function with a micro-batch and may repeat the call: after a crash between commit and checkpoint, from a
copy of a checkpoint, after years. The mark moves in the commit of the batch, so that both land or neither does. A batch
of several tables is a transaction, and its mark is kept in one of them: the sink's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from frazil.commit.intents import SinkMark
from frazil.commit.operations import Identity, MetadataChange, Write
from frazil.commit.retry import Retry
from frazil.errors import InvalidInput
from frazil.format.metadata import TableMetadata
from frazil.model import Commit, TransactionCommit
from frazil.table.call import Statement
from frazil.table.destination import Destination
from frazil.table.options import WriteOptions
from frazil.table.several import check_several
from frazil.table.source import Source

if TYPE_CHECKING:
    from frazil.table.handle import TableHandle
    from frazil.table.table import Table
    from frazil.transaction import Transaction

_log = logging.getLogger("frazil")

PREFIX = "frazil.sink."
_ID = re.compile(r"[\w.\-]{1,100}")


@dataclass(frozen=True, slots=True)
class Mark:
    """The last micro-batch that a sink has written."""

    batch: int
    query: str | None = None
    """The id of the streaming query, if Spark gives it; it stays the same over restarts from one checkpoint."""

    @staticmethod
    def parse(text: str | None, key: str) -> Mark | None:
        """Raises InvalidInput for a property that a sink did not write."""
        if text is None:
            return None
        try:
            raw: dict[str, Any] = json.loads(text)
            return Mark(int(raw["batch"]), raw.get("query"))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"The table property {key} is {text!r}, which is not a sink's mark",
                advice="Remove the property if no stream writes through this sink any more",
            ) from error

    def __str__(self) -> str:
        return json.dumps({"batch": self.batch} if self.query is None else {"batch": self.batch, "query": self.query})


def checked_id(sink_id: object) -> str:
    """The sink's id. There is no default: nothing in Spark names a sink for good. Raises InvalidInput."""
    if not isinstance(sink_id, str) or not _ID.fullmatch(sink_id):
        raise InvalidInput(
            f"A sink's id is a name of up to 100 letters, digits, dots, dashes and underscores, not {sink_id!r}",
            advice="Name the stream, for instance id='payments-eu', and keep the name over restarts",
        )
    return sink_id


def judge(sink_id: str, mark: Mark | None, batch_id: int, query: str | None) -> Literal["write", "skip"]:
    """Write a new batch, skip the last one when it comes again. Raises InvalidInput for any other batch."""
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or batch_id < 0:
        raise InvalidInput(f"A batch id is a number from 0 on, not {batch_id!r}", advice="Pass the id from Spark")
    if mark is None:
        return "write"
    if mark.query is not None and query is not None and mark.query != query:
        raise InvalidInput(
            f"The sink {sink_id!r} belongs to the streaming query {mark.query}, and this is {query}",
            evidence="A new checkpoint counts from 0 again",
            advice=f"Give the new stream another id, or remove the table property {PREFIX}{sink_id}",
        )
    if batch_id == mark.batch:
        return "skip"
    if batch_id < mark.batch:
        raise InvalidInput(
            f"The sink {sink_id!r} has written batch {mark.batch}, and this is batch {batch_id}",
            evidence="The checkpoint is older than the table, or belongs to another stream",
            advice="Restart from the newest checkpoint; or give the stream another id, if its rows are to be added",
        )
    return "write"


def query_of(frame: Any) -> str | None:
    """The id of the streaming query that a micro-batch belongs to, if the session has it."""
    try:
        found: str | None = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and no other place for it
        return None
    return found


SinkWrite = Callable[["Table", Any], Commit]
"""What a sink does with a batch: one write to the table it is given."""
_OF_A_TRANSACTION = ("isolation", "retry")


class SinkTransaction(Protocol):
    """What a sink does with a batch in a transaction: any number of writes to any tables."""

    def __call__(self, transaction: Transaction, batch: Any, /) -> object: ...


@dataclass(frozen=True, slots=True)
class StreamSink:
    """Call it with a micro-batch and its id. It pickles, as Spark Connect requires."""

    _table: Table
    _id: str
    _mode: Literal["append", "upsert"] | SinkWrite
    _options: WriteOptions

    def __call__(self, batch: Any, batch_id: int) -> Commit | None:
        """Write the batch; None: it was written before, or has no rows."""
        moved = moved_mark(self._id, self._table, batch, batch_id)
        if moved is None:
            return None
        target = type(self._table)(MoveSinkMark(self._table._destination, moved))
        if self._mode == "append":
            return target.append(batch, **self._options)
        if self._mode == "upsert":
            return target.upsert(batch, **self._options)
        return self._mode(target, batch)


def moved_mark(sink_id: str, table: TableHandle, batch: Any, batch_id: int) -> SinkMark | None:
    """The mark's move past a batch; None: the batch was written before. Raises InvalidInput for an older batch."""
    key = f"{PREFIX}{sink_id}"
    text = table._metadata().properties.get(key)
    mark, query = Mark.parse(text, key), query_of(batch)
    if judge(sink_id, mark, batch_id, query) == "skip":
        _log.warning("The sink %s has already written batch %s; it is skipped", sink_id, batch_id)
        return None
    return SinkMark(key, text, str(Mark(batch_id, query)))


@dataclass(frozen=True, slots=True)
class TransactionSink:
    """Call it with a micro-batch and its id: what the function writes is one transaction. It pickles likewise."""

    _table: Table
    _id: str
    _write: SinkTransaction
    _options: Mapping[str, Any]

    def __call__(self, batch: Any, batch_id: int) -> Commit | TransactionCommit | None:
        """Write the batch. None: it was written before.

        After a conflict the function is called again with the same batch and a new transaction, as by ``lake.run``.
        """
        landed = self._table._lake.run(partial(self._run, batch, batch_id), **self._options)
        return None if landed is None else landed.result or landed._found()

    def _run(self, batch: Any, batch_id: int, transaction: Transaction) -> Transaction | None:
        name = self._table._source.ident
        table = transaction.table((*name.namespace, name.name))
        moved = moved_mark(self._id, table, batch, batch_id)
        if moved is None:
            return None
        # Ahead of what the function does: it is in the commit also if the function commits.
        table._destination.change(MetadataChange(table.uuid, moved, "sink"), table._metadata())
        self._write(transaction, batch)
        if transaction.result is None and not transaction._writes_to(name):
            raise InvalidInput(
                f"The function of the sink {self._id!r} has rolled back, or dropped the sink's table {name}, so the "
                "batch cannot be marked as written",
                advice="Raise an exception to write nothing: the stream stops, and repeats the batch",
            )
        return transaction


def transaction_sink(table: Table, sink_id: str, write: object, options: WriteOptions) -> TransactionSink:
    """Raises InvalidInput, and Unsupported where the catalog commits one table at a time."""
    if not callable(write):
        raise InvalidInput(
            f"With transaction=True, mode is a function of the transaction and the batch, not {write!r}",
            advice="Leave transaction out to append or upsert into this table alone",
        )
    wrong = next((name for name in options if name not in _OF_A_TRANSACTION), None)
    if wrong is not None:
        raise InvalidInput(
            f"{wrong} belongs to a write, and the function of a sink with transaction=True makes these itself",
            advice=f"Give {wrong} to the write inside the function",
        )
    check_several(table._lake.catalog, "stream_sink(transaction=True)")
    given = {name: each for name, each in options.items() if each is not None}
    return TransactionSink(table, sink_id, write, given)


class MoveSinkMark:
    """A destination for one write, whose commit moves a sink's mark as well."""

    is_atomic = True

    def __init__(self, inner: Destination, mark: SinkMark) -> None:
        self._inner = inner
        self._mark: SinkMark | None = mark

    @property
    def source(self) -> Source:
        return self._inner.source

    def accept(self, verb: str, given: WriteOptions) -> WriteOptions:
        return self._inner.accept(verb, given)

    def identify(
        self, commit_id: str | None, verb: str, parameters: Mapping[str, object], metadata: TableMetadata, branch: str
    ) -> tuple[Identity, Commit | None]:
        return self._inner.identify(commit_id, verb, parameters, metadata, branch)

    def run(self, statement: Statement) -> Commit:
        if self._mark is None:
            raise InvalidInput(
                "A sink makes one write for each batch, and this is the second",
                advice="Do it in one merge(), or write the rest through another sink",
            )
        call = statement.call
        moved = MetadataChange(call.view.metadata.uuid, self._mark, "sink")
        self._mark = None
        return self._inner.run(replace(statement, call=replace(call, before=(*call.before, moved))))

    def change(
        self,
        change: MetadataChange,
        base: TableMetadata,
        *,
        identity: Identity | None = None,
        retry: Retry | None = None,
        reads: Sequence[Write] = (),
    ) -> Commit:
        return self._inner.change(change, base, identity=identity, retry=retry, reads=reads)
