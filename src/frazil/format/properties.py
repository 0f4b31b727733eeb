"""Table properties that Frazil reads. They are checked when set, as a bad value would fail every later write."""

from __future__ import annotations

from collections.abc import Mapping

from frazil.errors import InvalidInput

NAME_MAPPING = "schema.name-mapping.default"
ORPHAN_GRACE = "frazil.orphans.grace-ms"
"""The minimum age of an unreferenced file before orphan removal may delete it."""
RETENTION = "frazil.retention.in-commit"
"""'true': ordinary commits expire snapshots older than history.expire.max-snapshot-age-ms."""
RETENTION_MIN_AGE = "frazil.retention.min-age-ms"
"""Younger snapshots are always kept; one hour by default."""
ORPHANS_FENCE = "frazil.orphans.fence"
"""A new value with each orphan removal: attempts of writers that began before it start again, and check their files."""
REGISTER_AFTER = "frazil.staging.register-after-ms"
"""A write that stages for longer registers with the catalog, which protects its files; five seconds by default."""
SERVICES = "frazil.services."
"""Prefix of what decides about table services: thresholds, and their mode."""
SERVICES_MODE = "frazil.services.mode"
MODES = ("inline", "async", "service", "off")
LINEAGE_RUNS = "frazil.lineage.max-runs"
"""Beyond so many runs of rows a rewrite does not record where it copied each row from; 500,000 by default."""
_AT_LEAST = {
    "commit.retry.num-retries": 0,
    "commit.retry.min-wait-ms": 0,
    "commit.retry.max-wait-ms": 0,
    "commit.retry.total-timeout-ms": 1,
    "commit.manifest.min-count-to-merge": 1,
    "commit.manifest.target-size-bytes": 1,
    "write.metadata.previous-versions-max": 0,
    "write.target-file-size-bytes": 1,
    "history.expire.max-snapshot-age-ms": 0,
    "history.expire.min-snapshots-to-keep": 1,
    "history.expire.max-ref-age-ms": 1,
    ORPHAN_GRACE: 1,
    RETENTION_MIN_AGE: 0,
    REGISTER_AFTER: 0,
    LINEAGE_RUNS: 0,
}
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path")


def checked_properties(properties: object) -> dict[str, str]:
    """The properties. Raises InvalidInput for the first invalid one."""
    if not isinstance(properties, Mapping):
        raise InvalidInput(f"Properties must be a dict of strings, not {type(properties).__name__}")
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(
                f"Properties must be strings, but {key!r}: {value!r} is not", advice="Write numbers as '16'"
            )
        _check_one(key, value)
    return dict(properties)


def _check_one(key: str, value: str) -> None:
    least = _AT_LEAST.get(key)
    if least is not None and (not value.isdigit() or int(value) < least):
        raise InvalidInput(f"The table property {key} must be a whole number of at least {least}, not {value!r}")
    if key == SERVICES_MODE and value not in MODES:
        raise InvalidInput(f"The table property {key} must be one of {', '.join(MODES)}, not {value!r}")
    if key.startswith(SERVICES) and key != SERVICES_MODE and not value.isdigit():
        raise InvalidInput(f"The table property {key} must be a whole number, not {value!r}")
    if key in _PLACES and not value.startswith("/") and "://" not in value:
        raise InvalidInput(f"The table property {key} must be an absolute location, not {value!r}")
    if key == RETENTION and value not in ("true", "false"):
        raise InvalidInput(f"The table property {key} must be 'true' or 'false', not {value!r}")
    if key == NAME_MAPPING:
        check_name_mapping(value)


def check_name_mapping(text: str) -> None:
    from pyiceberg.table.name_mapping import parse_mapping_from_json

    try:
        parse_mapping_from_json(text)
    except ValueError as error:
        raise InvalidInput(f"The table property {NAME_MAPPING} is not a name mapping", evidence=str(error)) from error
