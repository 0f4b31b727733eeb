"""Errors on the command line: one paragraph on stderr and an exit code that scripts can rely on."""

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
    errors.PartlyCommitted: COMMIT_UNKNOWN,
    errors.NoSuchTable: NOT_FOUND,
    errors.NoSuchNamespace: NOT_FOUND,
    errors.CatalogUnavailable: UNAVAILABLE,
    errors.PermissionDenied: UNAVAILABLE,
    errors.StorageError: UNAVAILABLE,
}
"""By class, subclasses included; every other FrazilError is bad input."""

# user:password@ in any URI, and password=, token=, secret= … in connection strings and query parts.
_USERINFO = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)@")
_ASSIGNED = re.compile(
    r"(?i)([\w.-]*(?:password|passwd|pwd|secret|token|credential|access[-_]?key|api[-_]?key)[\w.-]*['\"]?\s*[=:]\s*)"
    r"('[^']*'|\"[^\"]*\"|[^\s&,;'\"]+)"
)

# The library's advice names arguments and methods; on the command line these are options and verbs.
_CLI_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"lake\.tables\('([^']*)'\)", r'"frazil tables \1"'),
        (r"lake\.tables\(\)", '"frazil tables"'),
        (r"lake\.create_namespace\('([^']*)'\)", r'"frazil create-namespace \1"'),
        (r"open it with lake\.table\(\)", "pass --exists-ok"),
        (r"connect with create=True(?: and without read_only)? to make one", 'make one with "frazil create TABLE DDL"'),
        (r"Connect with create=True and without read_only to make one", 'Make one with "frazil create TABLE DDL"'),
        (r"call with merge_schema=True", "pass --merge-schema"),
        (r"\bcommit_id=('[^']*')", r"--commit-id \1"),
        (r"retry=frazil\.Retry\(\w+=…\) or the table property", "the table property"),
        (
            r"Connect with warehouse=('[^']*') or a folder, or give location=",
            r"Pass --warehouse \1 or a folder, or --location",
        ),
        (r"Choose one: name=('[^']*')", r"Choose one: --name \1"),
        (r"\bin properties=", "in --property"),
        (r"partition_by=\['([^']*)', '([^']*)'\]", r'--partition-by "\1" --partition-by "\2"'),
        (r"sort_by=\['([^']*)', '([^']*)'\]", r'--sort-by "\1" --sort-by "\2"'),
    )
)


def in_cli_words(text: str) -> str:
    """The library's message with shell options and verbs instead of Python calls."""
    for pattern, words in _CLI_WORDS:
        text = pattern.sub(words, text)
    return text


def exit_code(error: BaseException) -> int:
    """The documented code of an error."""
    if isinstance(error, errors.FrazilError):
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), BAD_INPUT)
    return INTERRUPTED if isinstance(error, KeyboardInterrupt) else DEFECT


def masked(text: str) -> str:
    """The text with secrets masked; messages of other libraries may quote them."""
    return _ASSIGNED.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def masked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties for display: values whose name suggests a secret are masked."""
    return {key: "***" if is_secret(key) else masked(value) for key, value in properties.items()}


def debugging() -> bool:
    return os.environ.get("FRAZIL_DEBUG", "") not in ("", "0")


def explain(error: BaseException) -> str:
    """What to print for an error: its own message, or a request to report an unexpected one."""
    if isinstance(error, errors.FrazilError):
        return masked(in_cli_words(str(error)))
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted."
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return (
        f"Unexpected {type(error).__name__}: {masked(first)}\n"
        "This is a bug in Frazil. Run the command again with FRAZIL_DEBUG=1 for a traceback, and report it."
    )


def report(error: BaseException) -> int:
    """Print the error on stderr and return the exit code."""
    if sys.stderr is None:
        return exit_code(error)
    if debugging():
        sys.stderr.write(masked("".join(traceback.format_exception(error))))
    sys.stderr.write(f"frazil: {explain(error)}\n")
    return exit_code(error)
