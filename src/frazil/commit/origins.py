"""Where a commit comes from, as a snapshot's summary says it: application, host, statement kind and times.

A summary has text alone, so each value is a key of its own. Other engines have keys of their own for some of it.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from frazil.catalog.records import COMMIT_ID
from frazil.commit.operations import Identity, Kind
from frazil.commit.snapshot_layout import APP, HOST, STARTED, VERB
from frazil.errors import InvalidInput
from frazil.model import Origin, SharedCommit, Snapshot, Winner
from frazil.wording import MOST_SHORT, short

TRANSACTION = "transaction"
"""The verb of a commit of several statements. Each of its snapshots has the kind of its own write."""
_OURS = "frazil."
_WORDS = {Kind.REWRITE.value: "compact"}
"""Kinds that the caller knows by another word."""
_FOREIGN_ENGINE = "engine-name"
_FOREIGN_APPS = ("spark.app.name", "app-name", "spark.app.id", "app-id")
"""Keys of Iceberg Java and other writers, the most telling first."""


@dataclass(frozen=True, slots=True)
class Author:
    """Which application wrote a snapshot, and by which kind of statement. None: not known."""

    app: str | None = None
    host: str | None = None
    verb: str | None = None
    started_ms: int | None = None

    @property
    def origin(self) -> Origin | None:
        """None: Frazil did not record it."""
        if self.app is None or self.started_ms is None:
            return None
        return Origin(self.app, self.host or "", self.verb or "", self.started_ms)


def checked_app(app: object) -> str | None:
    """The name that a caller gave to an application. Raises InvalidInput."""
    if app is None:
        return None
    if not isinstance(app, str) or not app.strip() or short(app) != app:
        raise InvalidInput(
            f"app must be a short name of printable characters, not {app!r}",
            advice=f"Give at most {MOST_SHORT} characters, such as app='nightly-delete'",
        )
    return app


def program() -> str:
    """The name of the running program, for applications without a name of their own."""
    path = sys.argv[0] if sys.argv else ""
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    if name == "__main__.py":
        # python -m package
        name = folder.rpartition("/")[2]
    return short("python" if name in ("", "-", "-c", "-m") else name) or "python"


@functools.cache
def host() -> str:
    """This machine's name."""
    return short(socket.gethostname())


def word_of(kind: str) -> str:
    """What a caller calls a kind of write."""
    return _WORDS.get(kind, kind)


def in_summary(origin: Origin | None) -> dict[str, str]:
    """The origin as keys of a summary. The kind of the write is there in any case."""
    if origin is None:
        return {}
    texts = {APP: short(origin.app), HOST: short(origin.host), STARTED: str(origin.started_ms)}
    return {key: text for key, text in texts.items() if text}


def shared_in_summary(origins: list[Origin | None]) -> dict[str, str]:
    """What all commits of a shared snapshot have in common."""
    first, *others = [in_summary(each).items() for each in origins]
    common = set(first).intersection(*others)
    return {key: text for key, text in first if key != STARTED and (key, text) in common}


def of_write(identity: Identity, kind: Kind) -> Origin | None:
    """The origin that is recorded with one snapshot of a commit."""
    origin = identity.origin
    if origin is None or origin.verb != TRANSACTION:
        return origin
    return replace(origin, verb=word_of(kind))


def is_ours(summary: Mapping[str, str]) -> bool:
    """Frazil wrote a snapshot with this summary."""
    return any(key.startswith(_OURS) for key in summary)


def author_of(snapshot: Snapshot) -> Author:
    """What a snapshot's own summary says."""
    summary = snapshot.summary
    operation = None if snapshot.operation == "unknown" else snapshot.operation
    if not is_ours(summary):
        return Author(_foreign_app(summary), None, operation)
    started = summary.get(STARTED, "")
    return Author(
        summary.get(APP),
        summary.get(HOST),
        # Earlier versions named no verb for an append.
        word_of(summary[VERB]) if VERB in summary else operation,
        int(started) if started.isascii() and started.isdigit() else None,
    )


def winner_of(snapshot: Snapshot, commit: SharedCommit | None = None) -> Winner:
    """The commit that a snapshot holds; of several in a shared snapshot ``commit``, where it is known which one."""
    author = author_of(snapshot)
    origin = None if commit is None else commit.origin
    if origin is not None:
        author = Author(origin.app or None, origin.host or None, origin.verb or author.verb)
    return Winner(
        author.app,
        author.host,
        snapshot.summary.get(COMMIT_ID) if commit is None else commit.commit_id,
        author.verb,
        dt.datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=dt.UTC),
    )


def _foreign_app(summary: Mapping[str, str]) -> str | None:
    names = [summary.get(_FOREIGN_ENGINE), next((summary[key] for key in _FOREIGN_APPS if key in summary), None)]
    return " ".join(dict.fromkeys(short(each) for each in names if each)) or None
