"""Errors as a person at a terminal meets them: one paragraph on stderr and an exit code that scripts can rely on."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Mapping

from frazil import errors
from frazil.catalog._uri import is_secret

OK = 0
CONFLICT = 1
BAD_INPUT = 2
NOT_FOUND = 3
UNAVAILABLE = 4
COMMIT_UNKNOWN = 5
DEFECT = 70
INTERRUPTED = 130

EXIT_CODES: dict[type[errors.FrazilError], int] = {
    errors.CommitFailed: CONFLICT,
    errors.CommitUnknown: COMMIT_UNKNOWN,
    errors.NoSuchTable: NOT_FOUND,
    errors.NoSuchNamespace: NOT_FOUND,
    errors.CatalogUnavailable: UNAVAILABLE,
    errors.PermissionDenied: UNAVAILABLE,
    errors.StorageError: UNAVAILABLE,
}
"""By class, subclasses included; every other error of ours is bad input."""

# user:password@ in any URI, and password=, token=, secret= … in connection strings and query parts.
_USERINFO = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
_ASSIGNED = re.compile(
    r"(?i)([\w.-]*(?:password|passwd|pwd|secret|token|credential|access[-_]?key|api[-_]?key)[\w.-]*['\"]?\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s&,;'\"]+)"
)


def exit_code(error: BaseException) -> int:
    """The documented code of an error."""
    if isinstance(error, errors.FrazilError):
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), BAD_INPUT)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else DEFECT


def masked(text: str) -> str:
    """The text without the secrets it may quote, for words that libraries below us wrote."""
    return _ASSIGNED.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def masked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties fit for a screen: the values of those whose name sounds like a secret are hidden."""
    return {key: "***" if is_secret(key) else masked(value) for key, value in properties.items()}


def debugging() -> bool:
    return os.environ.get("FRAZIL_DEBUG", "") not in ("", "0")


def explain(error: BaseException) -> str:
    """What to print for an error: its own sentences, or one sentence and a hint for what nobody foresaw."""
    if isinstance(error, errors.FrazilError):
        return masked(str(error))
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return (
        f"Unexpected {type(error).__name__}: {masked(first)}\n"
        "This is a defect in Frazil. Run the command again with FRAZIL_DEBUG=1 to see where it happened, and report it."
    )


def report(error: BaseException) -> int:
    """Print the error on stderr and return the exit code."""
    if debugging():
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
    sys.stderr.write(f"frazil: {explain(error)}\n")
    return exit_code(error)
