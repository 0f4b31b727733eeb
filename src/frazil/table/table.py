"""A table as the user holds it. It is a name: every call reads the head; only a Scan pins a snapshot."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from frazil.commit.retry import Retry
from frazil.errors import InvalidInput
from frazil.format.times import Moment
from frazil.model import TimelineEntry
from frazil.on_spark.session import chosen as chosen_session
from frazil.services import advice, timeline
from frazil.services.advice import Advice
from frazil.services.erase import ErasureReport
from frazil.table.erasing import erase_rows
from frazil.table.handle import TableHandle
from frazil.table.options import WriteOptions, check_plain
from frazil.table.sink import SinkTransaction, SinkWrite, StreamSink, TransactionSink, checked_id, transaction_sink
from frazil.table.upkeep import own_commit

if TYPE_CHECKING:
    from frazil.lake import Lake


class Table(TableHandle):
    """A table of a lake. Safe to share between threads; pickles as a name that opens its lake again."""

    def __repr__(self) -> str:
        return f"Table({self.name!r} in {self._lake.uri})"

    @property
    def metadata_location(self) -> str:
        return self._lake.catalog.load(self._source.ident).location

    def pyiceberg(self) -> Any:
        """The same table as a PyIceberg table, for what Frazil does not do."""
        ident = self._source.ident
        return self._lake.pyiceberg().load_table((*ident.namespace, ident.name))

    # Erasure

    def erase(
        self,
        where: str,
        params: Mapping[str, object] | None = None,
        *,
        drop_tags: bool = False,
        case_sensitive: bool = False,
    ) -> ErasureReport:
        """Forget rows for good, and prove it.

        The rows are deleted on every branch, files that still hold them are written again, all snapshots but the newest
        of each branch expire, their files are removed, and the condition is taken out of what the catalog keeps. Then
        every remaining file of the table is searched. Tags that keep such rows are refused with a list, unless
        ``drop_tags``. Repeat it with the same condition after a crash: it does what is left.
        """
        destination = own_commit(self._destination, "erase()")
        return erase_rows(destination, where, params, drop_tags=drop_tags, case_sensitive=case_sensitive)

    # Services

    def timeline(self, limit: int | None = None) -> list[TimelineEntry]:
        """What services did to this table, and what they are doing: the newest actions first."""
        return timeline.entries(self._lake.catalog, self._source.ident, -1 if limit is None else limit)

    def advise(self) -> Advice:
        """The table's health, and what each service would save. Nothing is changed."""
        lake = self._lake
        return advice.advise(lake.catalog, lake.storage, self._source.ident, self)

    # Streams

    @overload
    def stream_sink(
        self,
        id: str,
        mode: Literal["append", "upsert"] | SinkWrite = "append",
        *,
        transaction: Literal[False] = False,
        **options: Unpack[WriteOptions],
    ) -> StreamSink: ...

    @overload
    def stream_sink(
        self,
        id: str,
        mode: SinkTransaction,
        *,
        transaction: Literal[True],
        **options: Unpack[WriteOptions],
    ) -> TransactionSink: ...

    def stream_sink(
        self,
        id: str,  # noqa: A002
        mode: Literal["append", "upsert"] | SinkWrite | SinkTransaction = "append",
        *,
        transaction: bool = False,
        **options: Unpack[WriteOptions],
    ) -> StreamSink | TransactionSink:
        """A function for ``foreachBatch`` that writes each micro-batch exactly once.

        ``id`` names the stream for good: what it has written is remembered over restarts, copies of checkpoints and
        expired snapshots. ``mode`` may be a function of this table and the batch that makes one write. With
        ``transaction=True`` it is a function of a transaction and the batch, which may write to any tables; they
        change in one commit, together with this table, which remembers the batch. It may be called again, as by
        ``lake.run``. Waits are short by default (``Retry.streaming()``), and rows that match a concurrent delete stay
        (``on_deleted="keep"``) where the sink appends them.
        """
        if mode not in ("append", "upsert") and not callable(mode):
            raise InvalidInput(f"mode must be 'append', 'upsert' or a function, not {mode!r}")
        check_plain(mode)
        given: WriteOptions = {"retry": Retry.streaming(), **options}
        if transaction:
            return transaction_sink(self, checked_id(id), mode, given)
        if mode == "append":
            given = {"on_deleted": "keep", **given}
        return StreamSink(self, checked_id(id), cast(Any, mode), given)

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
        kept, as Iceberg does. Compactions are skipped. A snapshot that removes rows fails the stream, unless it is
        skipped: ``skip_deletes`` skips those that only delete, ``skip_overwrites`` those that also add, with their new
        rows. ``max_files`` and ``max_rows`` bound a micro-batch by whole snapshots. Spark's workers need this package
        installed.
        """
        session = chosen_session(spark, self._lake.spark)
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

    # For other parts of the package

    @property
    def _lake(self) -> Lake:
        return self._source.lake
