"""PyIceberg's REST client with timeouts, which its own sessions lack, and with commits to several tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import Field
from pyiceberg.catalog.rest import Endpoint, HttpMethod, RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.typedef import IcebergBaseModel
from requests import HTTPError, Session

T = TypeVar("T")

CONNECT_TIMEOUT = "rest.connect-timeout"
READ_TIMEOUT = "rest.read-timeout"

_TRANSACTIONS = "transactions/commit"
_COMMIT_TRANSACTION = Endpoint(http_method=HttpMethod.POST, path=f"/v1/{{prefix}}/{_TRANSACTIONS}")
# As for PyIceberg's commit of one table: what decides nothing must not look like a refusal.
_ERRORS: dict[int, type[Exception]] = {
    409: CommitFailedException,
    500: CommitStateUnknownException,
    502: CommitStateUnknownException,
    504: CommitStateUnknownException,
}


class CommitTransactionRequest(IcebergBaseModel):
    """The body of a commit to several tables."""

    table_changes: tuple[CommitTableRequest, ...] = Field(alias="table-changes")


class BoundedRestCatalog(RestCatalog):
    """``rest.connect-timeout`` and ``rest.read-timeout``, in seconds, bound every request."""

    def _create_session(self) -> Session:
        # A private name, because the session exists only inside: the constructor already talks to the server with it.
        session = super()._create_session()
        limits = (float(self.properties.get(CONNECT_TIMEOUT, "5")), float(self.properties.get(READ_TIMEOUT, "60")))
        # On the session and not on an adapter: PyIceberg mounts one of its own where requests are signed.
        session.request = functools.partial(session.request, timeout=limits)  # type: ignore[method-assign]
        return session

    @property
    def takes_transactions(self) -> bool:
        """The server lists the endpoint that commits to several tables.

        The specification lets clients assume it of a server without a list. Such servers are those written before there
        was one, and a call to find out is a commit: they are taken to be without it.
        """
        return _COMMIT_TRANSACTION in self._supported_endpoints

    def commit_tables(self, changes: Sequence[CommitTableRequest]) -> None:
        """Commit to several tables, all or nothing. The session, its authentication and its errors are PyIceberg's."""
        body = CommitTransactionRequest.model_validate({"table-changes": tuple(changes)}).model_dump_json().encode()
        self._with_fresh_token(lambda: self._commit_tables(body))

    def _commit_tables(self, body: bytes) -> None:
        response = self._session.post(self.url(_TRANSACTIONS), data=body)
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, _ERRORS)

    def stage_table(self, identifier: tuple[str, ...], **parts: Any) -> Table:
        """The table that a commit with ``assert-create`` would make, with the server's ids and location."""
        response = self._with_fresh_token(lambda: self._create_table(identifier, **parts, stage_create=True))
        return self._response_to_staged_table(identifier, response)

    def _with_fresh_token(self, call: Callable[[], T]) -> T:
        """A token that has expired is replaced once, as before PyIceberg's own calls."""
        try:
            return call()
        except (AuthorizationExpiredError, UnauthorizedError):
            self._refresh_token()
            return call()
