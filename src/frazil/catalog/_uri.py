"""URIs without their secrets, for messages, reprs and logs."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?i)pass(word|phrase)?|token|secret|credential|signature|\bsig\b|\bpwd\b|(access|private|api|session|account).?key"
)
_QUERY_PART = re.compile(r"(?<=[?&;])([^=&;]+)=([^&;]*)")
# Greedy up to the last @: a password typed without percent-encoding may contain one itself.
_USER_INFO = re.compile(r"(?i)^((?:[a-z][a-z0-9+.-]*:)+//)([^:@/]*):(.*)@", re.DOTALL)


def mask_uri(uri: str) -> str:
    """The URI with passwords, tokens and keys replaced by three stars."""
    head, mark, query = uri.partition("?")
    if "@" in query and _USER_INFO.match(uri) and not _USER_INFO.match(head):
        # The question mark belongs to an unencoded password.
        head, mark, query = uri, "", ""
    head = _USER_INFO.sub(lambda found: f"{found[1]}{found[2]}:***@", head)
    return head + _QUERY_PART.sub(_masked_part, mark + query)


def is_secret(key: str) -> bool:
    """Whether a property or parameter of this name is a secret."""
    return _SECRET.search(key) is not None


def _masked_part(found: re.Match[str]) -> str:
    return f"{found[1]}=***" if is_secret(found[1]) else found[0]
