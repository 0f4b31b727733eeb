"""From a URI to a PyIceberg catalog, with time limits, and with an error that says why where it cannot be opened."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import CatalogType, infer_catalog_type
from pyiceberg.exceptions import NotInstalledError
from pyiceberg.utils.config import Config

from frazil.catalog._uri import mask_uri
from frazil.catalog.foreign_errors import Wording, translated
from frazil.errors import CatalogUnavailable, InvalidInput, Unsupported

SCHEMES = ("http", "https", "glue", "thrift", "pyiceberg")
CONNECT_TIMEOUT = "glue.connect-timeout"
READ_TIMEOUT = "glue.read-timeout"

_IMPLEMENTATION = "py-catalog-impl"
_KINDS = {"http": "rest", "https": "rest", "glue": "glue", "thrift": "hive"}
_NEEDS = {
    "glue": ("boto3", "pip install 'frazil[s3]'"),
    "hive": ("thrift", "pip install 'pyiceberg[hive]'"),
    "sql": ("sqlalchemy", "pip install 'pyiceberg[sql-sqlite]' or 'pyiceberg[sql-postgres]'"),
    "bigquery": ("google.cloud.bigquery", "pip install 'pyiceberg[bigquery]'"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What to open: the catalog's name, its kind and PyIceberg's properties for it."""

    name: str
    kind: str
    properties: Mapping[str, Any]
    shown: str
    """The URI without its secrets."""

    def open(self) -> PyIcebergCatalog:
        """Connect. Raises Unsupported, InvalidInput, PermissionDenied, CatalogUnavailable."""
        _check_installed(self.kind)
        with _opening(Wording.of(f"The catalog {self.shown}", self.properties)):
            return _open(self.name, self.kind, dict(self.properties))


def target(uri: str, *, warehouse: str | None, name: str | None, properties: Mapping[str, str]) -> Target:
    """What a URI of ``SCHEMES`` names. Raises InvalidInput and Unsupported before anything is connected."""
    scheme, _, rest = uri.partition(":")
    given: dict[str, Any] = {**properties, **({"warehouse": warehouse} if warehouse else {})}
    if scheme == "pyiceberg":
        return _configured(rest.removeprefix("//"), given)
    if scheme not in _KINDS:
        raise InvalidInput(f"No catalog is known for {mask_uri(uri)!r}", advice=f"Use one of {', '.join(SCHEMES)}")
    if scheme != "glue":
        given["uri"] = uri
    return Target(name or "frazil", _KINDS[scheme], given, mask_uri(uri))


def _configured(name: str, given: Mapping[str, Any]) -> Target:
    found: Mapping[str, Any] | None = Config().get_catalog_config(name) if name else None
    if found is None and not given.keys() & {"type", "uri", _IMPLEMENTATION}:
        raise InvalidInput(
            f"PyIceberg's configuration has no catalog named {name!r}",
            evidence=f"It knows {', '.join(Config().get_known_catalogs()) or 'none'}",
            advice=f"Add it to ~/.pyiceberg.yaml, or set PYICEBERG_CATALOG__{name.upper()}__URI",
        )
    conf = {**(found or {}), **given}
    if conf.get(_IMPLEMENTATION):
        return Target(name, "custom", conf, f"pyiceberg:{name}")
    try:
        kind = CatalogType(str(conf["type"]).lower()) if conf.get("type") else infer_catalog_type(name, conf)
    except ValueError as error:
        raise InvalidInput(f"PyIceberg's configuration of {name!r} does not say which kind of catalog it is") from error
    if kind is CatalogType.DYNAMODB:
        raise Unsupported(
            "PyIceberg's DynamoDB catalog cannot commit to a table",
            advice="Use Glue, a REST catalog, or frazil's own catalog on Postgres",
        )
    return Target(name, kind.value if kind else "rest", conf, f"pyiceberg:{name}")


def _check_installed(kind: str) -> None:
    module, command = _NEEDS.get(kind, ("pyiceberg", ""))
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        raise Unsupported(f"A {kind} catalog needs the package {module}, which is not installed", advice=command)


def _open(name: str, kind: str, properties: dict[str, Any]) -> PyIcebergCatalog:
    if kind != "custom":
        properties["type"] = kind
    if kind == "rest":
        from frazil.format.rest_client import BoundedRestCatalog

        return BoundedRestCatalog(name, **properties)
    if kind == "glue":
        return _open_glue(name, properties)
    from pyiceberg.catalog import load_catalog

    with warnings.catch_warnings():
        # SQLAlchemy and thrift announce their own future here; nothing of it is the caller's to act on.
        warnings.simplefilter("ignore", DeprecationWarning)
        return load_catalog(name, **properties)


def _open_glue(name: str, properties: dict[str, Any]) -> PyIcebergCatalog:
    import botocore.session
    from botocore.config import Config as BotoConfig
    from pyiceberg.catalog.glue import GlueCatalog

    session = properties.get("botocore-session") or botocore.session.Session()
    if session.get_default_client_config() is None:
        # PyIceberg sets retries on its client and no time limits; botocore's own are a minute per try.
        limits = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT}
        defaults = {"connect_timeout": "5", "read_timeout": "60"}
        session.set_default_client_config(
            BotoConfig(**{name: float(properties.get(key, defaults[name])) for name, key in limits.items()})
        )
    return GlueCatalog(name, **{"glue.max-retries": 4, **properties, "botocore-session": session})


@contextlib.contextmanager
def _opening(wording: Wording) -> Iterator[None]:
    with translated(wording):
        try:
            yield
        except NotInstalledError as error:
            raise Unsupported(wording.text(error)) from error
        except ImportError as error:
            raise Unsupported(
                f"{wording.catalog} needs a package that is not installed", evidence=str(error)
            ) from error
        except EOFError as error:
            raise CatalogUnavailable(f"{wording.catalog} closed the connection") from error
