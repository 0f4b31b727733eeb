"""What a running service tells about itself. The timeline records it; a service that runs alone needs none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class ServiceProgress(Protocol):
    """The record of one service action."""

    def planned(self, plan: Mapping[str, Any]) -> None:
        """What the action is going to do."""

    def advanced(self, done: int, total: int, detail: Mapping[str, Any]) -> None:
        """So many of its parts are done. Also the action's heartbeat."""

    @property
    def should_stop(self) -> bool:
        """Asked between two parts: end after what is committed."""


class NoProgress:
    """Nothing is recorded."""

    should_stop = False

    def planned(self, plan: Mapping[str, Any]) -> None: ...

    def advanced(self, done: int, total: int, detail: Mapping[str, Any]) -> None: ...
