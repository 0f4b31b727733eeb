"""The lake with the Spark session that was given for one statement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from frazil.catalog.base import LakeCatalog
from frazil.errors import Unsupported
from frazil.model import Ident
from frazil.on_spark.session import Session, active, checked
from frazil.table.destination import CommitNow
from frazil.table.table import Table
from frazil.transaction import LakeSnapshot, Transaction

Row = dict[str, Any]


class LakeLike(Protocol):
    """What SQL needs of a lake."""

    spark: Any

    @property
    def catalog(self) -> LakeCatalog: ...

    def create_namespace(
        self, name: str | tuple[str, ...], properties: Mapping[str, str] | None = None, *, exists_ok: bool = False
    ) -> None: ...

    def namespaces(self) -> list[str]: ...

    def drop_namespace(self, name: str | tuple[str, ...]) -> None: ...

    def tables(self, namespace: str | tuple[str, ...] | None = None) -> list[str]: ...

    def exists(self, name: str | tuple[str, ...]) -> bool: ...

    def create_table(
        self,
        name: str | tuple[str, ...],
        schema: object = None,
        *,
        partition_by: Sequence[str] | None = (),
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
        comment: str | None = None,
        exists_ok: bool = False,
        as_: object = None,
    ) -> Table: ...

    def drop_table(self, name: str | tuple[str, ...], *, purge: bool = False) -> None: ...

    def rename_table(self, old: str | tuple[str, ...], new: str | tuple[str, ...]) -> Table: ...


class _WithSession:
    """A lake with another session, for the tables opened through it."""

    def __init__(self, lake: LakeLike, spark: Session) -> None:
        self._lake = lake
        self.spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lake, name)


@dataclass(frozen=True, slots=True)
class Context:
    """A lake and the session given with the statement; None: the lake's own, and for queries the active one."""

    lake: LakeLike
    given: Session | None

    def session(self, what: str) -> Session:
        """The session that runs a query. Raises Unsupported when there is none."""
        found = self.session_or_none()
        if found is None:
            raise Unsupported(
                f"{what} needs a Spark session",
                advice="Pass one: lake.sql(…, spark=frazil.spark()), or connect(…, spark=frazil.spark())",
            )
        return found

    def session_or_none(self) -> Session | None:
        found = next((each for each in (self.given, self.lake.spark) if each is not None), None)
        return active() if found is None else checked(found)

    def table(self, parts: tuple[str, ...]) -> Table:
        """Raises NoSuchTable."""
        ident = Ident.parse(parts)
        self.lake.catalog.load(ident)
        return Table(CommitNow(self._bound(self.given), ident))

    def snapshot(self, session: Session) -> LakeSnapshot:
        return LakeSnapshot(self._bound(session))

    def transaction(self, session: Session | None, isolation: str) -> Transaction:
        return Transaction(self._bound(session), isolation=isolation, retry=None, commit_id=None)

    def _bound(self, session: Session | None) -> Any:
        return self.lake if session is None else cast(Any, _WithSession(self.lake, session))
