"""What the exceptions of PyIceberg and of the clients below it mean, by type and status code, never by message text.

Outside a commit: which Frazil error it is. After a failed commit: what it proves (rule P30).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import requests
from pyiceberg import exceptions as theirs

from frazil.catalog import _refusals
from frazil.catalog._uri import is_secret
from frazil.errors import (
    CatalogUnavailable,
    FrazilError,
    InvalidInput,
    PermissionDenied,
    StorageError,
    Unsupported,
)
from frazil.model import Ident

try:
    from botocore import exceptions as boto
except ImportError:  # pragma: no cover - without the s3 extra there is no AWS client whose errors could be raised
    boto = None

_LONGEST_TEXT = 300

_DENIED = (theirs.UnauthorizedError, theirs.ForbiddenError, theirs.AuthorizationExpiredError, theirs.OAuthError)
_BUSY = (theirs.ServiceUnavailableError, theirs.TooManyRequestsError, theirs.WaitingForLockException)
_REFUSED = (
    theirs.CommitFailedException,
    theirs.TableAlreadyExistsError,
    theirs.NamespaceAlreadyExistsError,
    theirs.NoSuchTableError,
    theirs.WaitingForLockException,
)
_AWS_DENIED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_AWS_BUSY = frozenset({"ThrottlingException", "Throttling", "RequestLimitExceeded", "ServiceUnavailable"})
Subject = Ident | tuple[str, ...] | str
"""A table or a namespace, of which the empty one is the catalog itself; or the names of several tables."""


@dataclass(frozen=True, slots=True)
class Wording:
    """The catalog's name in messages, and the secrets that must not appear in them."""

    catalog: str
    secrets: frozenset[str] = frozenset()

    @staticmethod
    def of(catalog: str, properties: Mapping[str, Any]) -> Wording:
        hidden = {str(value) for key, value in properties.items() if is_secret(key) and len(str(value)) > 3}
        # OAuth2 credentials are "id:secret".
        return Wording(
            catalog, frozenset(hidden | {part for text in hidden for part in text.split(":") if len(part) > 3})
        )

    def text(self, error: BaseException) -> str:
        """An exception's message, without secrets and not too long."""
        words = str(error) or type(error).__name__
        for secret in sorted(self.secrets, key=len, reverse=True):
            words = words.replace(secret, "***")
        return words if len(words) <= _LONGEST_TEXT else words[:_LONGEST_TEXT] + " …"


@dataclass(frozen=True, slots=True)
class Failure:
    """What a failed commit_table proves."""

    cause: str
    answered: bool
    """True: the server refused this very request, or never got it: it is not on its way any more."""
    error: FrazilError | None = None
    """Raised when the commit is absent and the table unchanged: a retry would get the same answer."""
    status: int | None = None
    """Of HTTP, where there is one."""


@contextlib.contextmanager
def translated(wording: Wording, subject: Subject = (), target: Ident | None = None) -> Iterator[None]:
    """Exceptions of a call that commits nothing, as Frazil errors. ``target``: the new name in a rename."""
    try:
        yield
    except FrazilError:
        raise
    except Exception as error:
        ours = as_ours(error, wording, subject, target)
        if ours is None:
            raise
        raise ours from error


def as_ours(error: Exception, wording: Wording, subject: Subject, target: Ident | None = None) -> FrazilError | None:
    """The Frazil error for an exception; None: unknown here, a defect that must be raised as it is."""
    if isinstance(error, ValueError) and error.__cause__ is not None:
        # PyIceberg's Glue catalog raises a ValueError when it undid a rename; the cause says why.
        found = _about_names(error.__cause__, subject, target)
    else:
        found = _about_names(error, subject, target)
    return found or _about_access(error, wording, _named(subject))


def _about_names(error: BaseException, subject: Subject, target: Ident | None) -> FrazilError | None:
    if isinstance(subject, str):
        return None
    if isinstance(subject, Ident):
        if isinstance(error, theirs.NoSuchTableError | theirs.NoSuchIdentifierError):
            return _refusals.no_such_table(subject)
        if isinstance(error, theirs.TableAlreadyExistsError):
            return _refusals.table_exists(target or subject)
        if isinstance(error, theirs.NoSuchNamespaceError):
            return _refusals.no_such_namespace((target or subject).namespace)
        return None
    if isinstance(error, theirs.NoSuchNamespaceError):
        return _refusals.no_such_namespace(subject)
    if isinstance(error, theirs.NamespaceAlreadyExistsError):
        return _refusals.namespace_exists(subject)
    if isinstance(error, theirs.NamespaceNotEmptyError):
        return _refusals.namespace_not_empty(subject)
    return None


def _about_access(error: Exception, wording: Wording, subject: str) -> FrazilError | None:
    if _is_denied(error):
        return PermissionDenied(
            f"{wording.catalog} refused access to {subject}",
            evidence=wording.text(error),
            advice="Check the token or the keys in properties=",
        )
    if _is_out_of_reach(error):
        return CatalogUnavailable(
            f"{wording.catalog} cannot be reached",
            evidence=f"{type(error).__name__} while asking for {subject}",
            advice="Check the address, and that the server is up",
        )
    if isinstance(error, NotImplementedError):
        return Unsupported(f"{wording.catalog} does not offer this for {subject}", evidence=wording.text(error))
    if isinstance(error, theirs.RESTError) or _is_boto(error, "ClientError"):
        return CatalogUnavailable(
            f"{wording.catalog} answered with an error about {subject}", evidence=wording.text(error)
        )
    if isinstance(error, OSError):
        return StorageError(f"Cannot read or write the metadata of {subject}", evidence=wording.text(error))
    if isinstance(error, ValueError):
        return InvalidInput(f"{wording.catalog} does not accept {subject}", evidence=wording.text(error))
    return None


def failure(error: Exception, wording: Wording, subject: Subject) -> Failure:
    """What the exception of a commit proves (rule P30)."""
    cause = f"{type(error).__name__}: {wording.text(error)}"
    if _was_never_sent(error):
        return Failure(cause, answered=True, error=as_ours(error, wording, subject))
    code = status_code(error)
    if code is not None:
        # 408: the server gave up waiting, which decides nothing. 5xx is an unknown state to Iceberg's own clients too.
        answered = (400 <= code < 500 and code != 408) or code == 501
        return Failure(cause, answered, _refusal(error, wording, subject) if answered and code != 409 else None, code)
    if _is_boto(error, "ClientError"):
        # A request that botocore sent twice may have succeeded the first time, whatever the second answer is.
        answered = aws_retries(error) == 0 and (aws_status(error) or 500) < 500
        return Failure(cause, answered, _refusal(error, wording, subject) if answered else None)
    if isinstance(error, _REFUSED):
        return Failure(cause, answered=True, error=as_ours(error, wording, subject) if _is_busy(error) else None)
    # PyIceberg applies updates in this process before it sends anything: an update that does not fit the newer table
    # (a sequence number, a property that is gone) is a plain ValueError or KeyError. Subclasses are not: an answer that
    # cannot be parsed is a ValueError too, and comes after the commit.
    return Failure(cause, answered=type(error) in (ValueError, KeyError))


def status_code(error: BaseException) -> int | None:
    """The HTTP status behind an exception of PyIceberg's REST client."""
    response = getattr(error.__cause__, "response", None)
    return response.status_code if isinstance(response, requests.Response) else None


def aws_code(error: BaseException) -> str | None:
    return error.response["Error"].get("Code") if _is_boto(error, "ClientError") else None  # type: ignore[attr-defined]


def aws_status(error: BaseException) -> int | None:
    found: int | None = _aws_metadata(error).get("HTTPStatusCode")
    return found


def aws_retries(error: BaseException) -> int:
    return int(_aws_metadata(error).get("RetryAttempts", 0))


def _aws_metadata(error: BaseException) -> dict[str, Any]:
    return error.response.get("ResponseMetadata", {}) if _is_boto(error, "ClientError") else {}  # type: ignore[attr-defined]


def _refusal(error: Exception, wording: Wording, subject: Subject) -> FrazilError:
    problem = f"{wording.catalog} refused the change of {_named(subject)}"
    if status_code(error) in (400, 422):
        return InvalidInput(problem, evidence=wording.text(error))
    return as_ours(error, wording, subject) or CatalogUnavailable(problem, evidence=wording.text(error))


def _named(subject: Subject) -> str:
    return str(subject) if isinstance(subject, Ident | str) else ".".join(subject) or "its namespaces"


def _is_denied(error: BaseException) -> bool:
    return (
        isinstance(error, _DENIED)
        or _is_boto(error, "NoCredentialsError")
        or aws_code(error) in _AWS_DENIED
        or aws_status(error) in (401, 403)
    )


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, _BUSY) or aws_code(error) in _AWS_BUSY


def _is_out_of_reach(error: BaseException) -> bool:
    return (
        _is_busy(error)
        or isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.Timeout)
        or _is_boto(error, "HTTPClientError")
        or _is_boto(error, "ConnectionError")
    )


def _is_boto(error: BaseException, name: str) -> bool:
    return boto is not None and isinstance(error, getattr(boto, name))


def _was_never_sent(error: BaseException) -> bool:
    """No connection was made. Only for a client that sends once: botocore's last try proves nothing about its first."""
    if not isinstance(error, requests.exceptions.ConnectionError) or not error.args:
        return False
    reason = getattr(error.args[0], "reason", error.args[0])
    return isinstance(reason, _no_connection())


def _no_connection() -> tuple[type[Exception], ...]:
    from urllib3 import exceptions as urllib3

    return urllib3.NewConnectionError, urllib3.ConnectTimeoutError
