"""One rooted tree of errors. Every class answers three questions as attributes, so that no caller parses messages:

``retryable``               may the same call succeed now, if it is repeated whole and unchanged?
``safe_to_delete_staged``   is it certain that nothing the failed write staged can be live?
``who_must_act``            "caller" (change the call), "operator" (repair the environment), "nobody" (repeat the call)

A message has up to three sentences: the problem, the evidence, what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from frazil.model import Conflict

Actor = Literal["caller", "operator", "nobody"]


class FrazilError(Exception):
    """The root: ``except frazil.FrazilError`` catches every error that Frazil raises on purpose."""

    retryable: bool = False
    safe_to_delete_staged: ClassVar[bool] = True
    who_must_act: ClassVar[Actor] = "caller"

    def __init__(self, problem: str, *, evidence: str | None = None, advice: str | None = None) -> None:
        self.problem = problem
        self.evidence = evidence
        self.advice = advice
        # A part that begins with a line break brings its own separator.
        parts = (_sentence(part) for part in (problem, evidence, advice) if part)
        super().__init__("".join(part if part[0] == "\n" else f" {part}" for part in parts).lstrip())

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by calling the class with args, which would drop the keyword parts and any subclass fields.
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class CommitFailed(FrazilError):
    """The write definitely did not land; its staged files are deleted. Base of ConflictError and RetriesExhausted."""


class ConflictError(CommitFailed):
    """Another writer committed a change that this write cannot be rebased over. Repeat it from a fresh read.

    ``retryable``: whether the whole call may succeed now; not if it would meet the same conflict again, such as rows
    for a column that was dropped.
    """

    retryable = True

    def __init__(
        self,
        problem: str,
        *,
        conflicts: tuple[Conflict, ...] = (),
        retryable: bool = True,
        evidence: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.conflicts = conflicts
        self.retryable = retryable
        super().__init__(problem, evidence=evidence, advice=advice)


class RetriesExhausted(CommitFailed):
    """Every allowed attempt lost its race or met a fault. Nothing conflicts: the same call may succeed later."""

    retryable = True
    who_must_act = "nobody"

    def __init__(
        self, problem: str, *, attempts: int = 0, evidence: str | None = None, advice: str | None = None
    ) -> None:
        self.attempts = attempts
        super().__init__(problem, evidence=evidence, advice=advice)


class CommitUnknown(FrazilError):
    """It is unknown whether the write landed. Nothing was deleted; repeat the call with the same ``commit_id``."""

    retryable = True
    safe_to_delete_staged = False
    who_must_act = "operator"

    def __init__(
        self, problem: str, *, commit_id: str = "", evidence: str | None = None, advice: str | None = None
    ) -> None:
        self.commit_id = commit_id
        if commit_id and advice is None:
            advice = (
                f"Nothing was deleted. Repeat the call with commit_id={commit_id!r}: if the write landed it is found, "
                "if not it is committed"
            )
        super().__init__(problem, evidence=evidence, advice=advice)


class PartlyCommitted(FrazilError):
    """A catalog that is not atomic over tables applied half of a transaction. Nothing was deleted.

    ``committed`` and ``missing`` name the tables that have it and those that do not.
    """

    safe_to_delete_staged = False
    who_must_act = "operator"

    def __init__(
        self,
        problem: str,
        *,
        commit_id: str = "",
        committed: tuple[str, ...] = (),
        missing: tuple[str, ...] = (),
        evidence: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.commit_id = commit_id
        self.committed = committed
        self.missing = missing
        super().__init__(problem, evidence=evidence, advice=advice)


class InvalidInput(FrazilError):
    """The call itself is wrong; nothing was written."""


class SchemaMismatch(InvalidInput):
    """The rows do not fit the table's schema; nothing was committed."""


class NoSuchTable(FrazilError):
    """No table has this name."""


class NoSuchNamespace(FrazilError):
    """No namespace has this name."""


class NamespaceNotEmpty(FrazilError):
    """The namespace still holds tables or namespaces."""


class TableExists(FrazilError):
    """A table of this name already exists."""


class NamespaceExists(FrazilError):
    """A namespace of this name already exists."""


class Unsupported(FrazilError):
    """The table or the request uses a feature that this version does not support; nothing was done."""


class PermissionDenied(FrazilError):
    """The catalog or the storage refused access."""

    who_must_act = "operator"


class CatalogUnavailable(FrazilError):
    """The catalog cannot be reached. No commit was sent, or its outcome is known to be negative."""

    retryable = True
    who_must_act = "operator"


class StorageError(FrazilError):
    """A file could not be read or written: disk full, file missing, object store unavailable."""

    retryable = True
    who_must_act = "operator"


class SparkFailed(FrazilError):
    """A Spark job of the call failed; nothing was committed."""

    retryable = True
    who_must_act = "operator"


class DiskFull(StorageError):
    """The disk is full. Waiting does not help, so a commit does not retry."""


class CorruptMetadata(StorageError):
    """A metadata file, manifest list or manifest is missing or cannot be parsed."""

    retryable = False


def _sentence(text: str) -> str:
    text = text.rstrip().lstrip(" ")
    return text if text.endswith((".", "!", "?")) else text + "."


def _rebuild(cls: type[FrazilError], args: tuple[Any, ...], state: dict[str, Any]) -> FrazilError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
