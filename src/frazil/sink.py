"""A stream's place in a table: one high-water mark for each sink, kept in the table itself (rule P11).

Spark hands a micro-batch to a function and may hand it over again: after a crash between commit and checkpoint, from a
copy of a checkpoint, after years. The mark moves in the same metadata file as the batch, so that both are there or
neither is.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from frazil.errors import InvalidInput

PREFIX = "frazil.sink."
_ID = re.compile(r"[\w.\-]{1,100}")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a sink has come."""

    batch: int
    query: str | None = None
    """The id of the streaming query, where Spark tells it; it stays the same over restarts from one checkpoint."""

    @staticmethod
    def parse(text: str | None, key: str) -> Mark | None:
        """Raises InvalidInput for a property that nobody but a sink should have written, and did."""
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
    """The sink's id. Raises InvalidInput: there is no default, as nothing in Spark names a sink for good."""
    if not isinstance(sink_id, str) or not _ID.fullmatch(sink_id):
        raise InvalidInput(
            f"A sink's id is a name of up to 100 letters, digits, dots, dashes and underscores, not {sink_id!r}",
            advice="Name the stream, for instance id='payments-eu', and keep the name over restarts",
        )
    return sink_id


def judge(sink_id: str, mark: Mark | None, batch_id: int, query: str | None) -> Literal["write", "skip"]:
    """What becomes of a batch: it is new, or it is the last one again. Raises InvalidInput when it is neither."""
    if isinstance(batch_id, bool) or not isinstance(batch_id, int) or batch_id < 0:
        raise InvalidInput(f"A batch id is a number from 0 on, not {batch_id!r}", advice="Pass on what Spark gives")
    if mark is None:
        return "write"
    if mark.query is not None and query is not None and mark.query != query:
        raise InvalidInput(
            f"The sink {sink_id!r} belongs to the streaming query {mark.query}, and this is {query}",
            evidence="A checkpoint that was deleted or made anew begins to count from 0 again",
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
    """The id of the streaming query that a micro-batch belongs to, where the session tells it."""
    try:
        found: str | None = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and tells it nowhere else
        return None
    return found
