"""The options that every verb shares: which lake, and which output format."""

from __future__ import annotations

import enum
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.errors import InvalidInput

if TYPE_CHECKING:
    from frazil.lake import Lake


class Output(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Target:
    """The shared options, as far as they were given."""

    uri: str | None = None
    warehouse: str | None = None
    name: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    output: Output | None = None

    @property
    def json(self) -> bool:
        return self.output is Output.JSON

    def address(self) -> str:
        """The lake's URI, from the options or FRAZIL_URI."""
        found = self.uri or os.environ.get("FRAZIL_URI")
        if not found:
            raise InvalidInput(
                "No lake was given", advice="Pass --uri ./lake (or postgresql://…, http://…), or set FRAZIL_URI"
            )
        return found

    def connect(self, *, create: bool = False, read_only: bool = False) -> Lake:
        """Open the lake. Verbs that read never create one: a typo in the path must not look like an empty lake."""
        import frazil

        return frazil.connect(
            self.address(),
            warehouse=self.warehouse,
            name=self.name,
            properties=dict(self.properties),
            read_only=read_only,
            create=create,
        )

    def over(self, outer: Target) -> Target:
        """These options where given, else those before the verb."""
        return replace(
            self,
            uri=self.uri or outer.uri,
            warehouse=self.warehouse or outer.warehouse,
            name=self.name or outer.name,
            properties={**outer.properties, **self.properties},
            output=self.output or outer.output,
        )


_PANEL = "Lake and output"
Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        help="A folder, sqlite:///…, postgresql://…, http://…, pyiceberg:NAME. \\[env var: FRAZIL_URI]",
        rich_help_panel=_PANEL,
    ),
]
Warehouse = Annotated[
    str | None, typer.Option("--warehouse", help="Where new tables keep their files.", rich_help_panel=_PANEL)
]
Name = Annotated[
    str | None, typer.Option("--name", help="The catalog's name inside its database.", rich_help_panel=_PANEL)
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="KEY=VALUE", help="A catalog or storage property; repeatable.", rich_help_panel=_PANEL
    ),
]
Format = Annotated[
    Output | None,
    typer.Option("--output", help="table for people (the default), json for programs.", rich_help_panel=_PANEL),
]

_SHARED: dict[str, Any] = {
    "uri": Uri,
    "warehouse": Warehouse,
    "name": Name,
    "property": Properties,
    "output": Format,
}


def target_of(values: Mapping[str, Any]) -> Target:
    """The shared options among a command's arguments."""
    return Target(
        uri=values["uri"],
        warehouse=values["warehouse"],
        name=values["name"],
        properties=pairs(values["property"] or [], "--property"),
        output=values["output"],
    )


def shared_parameters() -> list[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=None, annotation=kind) for name, kind in _SHARED.items()]


def verb(function: Callable[..., int | None]) -> Callable[..., None]:
    """A command ``function(target, …)`` as typer wants it, with the shared options added to its own.

    A number the function returns is the exit code.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

    def run(ctx: typer.Context, **values: Any) -> None:
        outer = ctx.obj if isinstance(ctx.obj, Target) else Target()
        target = target_of(values).over(outer)
        code = function(target, **{p.name: values[p.name] for p in own})
        if code:
            raise typer.Exit(code)

    context = inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    run.__signature__ = inspect.Signature([context, *keyword_only, *shared_parameters()])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return run


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """``["k=v", …]`` as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            # The argument is not quoted: it may be a secret whose key was forgotten.
            raise InvalidInput(f"{option} takes KEY=VALUE", advice=f"As in {option} s3.region=eu-west-1")
        found[key] = value
    return found
