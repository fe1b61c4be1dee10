"""Hide values that may be secrets before they are stored.

Nobody can tell a secret by its name: it may be the second positional argument, a URL with a password in it, or a header
in a dict. So numbers, bools, None and lists of them are stored as they are, and every other value as a short hash. The
hash shows that a value changed. Each version has its own salt, so that a table computed once is of no use. Hashes are
short, so that many values share one and a guess cannot be confirmed.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(
    r"secret|token(?!i[sz])|passw|passphrase|pwd|credential|bearer|authori[sz]ation|(api|private|access)[_-]?key",
    re.IGNORECASE,
)
_MARK = "salted:"
_DIGITS = 6
"""Hexadecimal digits of the hash of a hidden value: one change in 16 million goes unnoticed."""
_SALT_NBYTES = 8
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/@]*:(?!\d+/)[^@]*|[^/]*)@", re.DOTALL)
_QUERY = re.compile(r"(://[^?#]*)[?#].*", re.DOTALL)


def is_secret(name: str) -> bool:
    """Return whether a name sounds like that of a secret."""
    return _SECRET.search(name) is not None


def hashed(text: str) -> str:
    """Return the hash of a text."""
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def without_secrets(name: str, value: Any) -> Any:
    """Return a value with each part hashed that is named like a secret; version names are made from the result."""
    if is_secret(name):
        return hashed(json.dumps(value, sort_keys=True))
    if isinstance(value, dict):
        return {key: without_secrets(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_secrets("", item) for item in value]
    return value


def new_salt() -> str:
    """Return a salt for a new version."""
    return secrets.token_hex(_SALT_NBYTES)


def hidden(value: Any, salt: str) -> Any:
    """Return a JSON value as it is stored: numbers, bools, None and lists of them as they are, all else as a hash."""
    return value if _is_open(value) else hidden_text(json.dumps(value, sort_keys=True), salt)


def hidden_values(values: Mapping[str, Any], salt: str | None) -> dict[str, Any]:
    """Return named values as they are stored; an earlier release had no salt, and stored them in clear."""
    return {name: value if salt is None else hidden(value, salt) for name, value in values.items()}


def hidden_text(text: str, salt: str) -> str:
    """Return the hash that is stored instead of a text."""
    return _MARK + hashlib.sha256(f"{salt}\0{text}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def is_hidden(value: Any) -> bool:
    """Return whether a stored value is the hash of a hidden one."""
    return isinstance(value, str) and value.startswith((_MARK, "sha256:"))


def without_hidden(value: Any) -> Any:
    """Return a stored value without the hashes of hidden values in it."""
    if isinstance(value, Mapping):
        kept = {name: without_hidden(item) for name, item in value.items() if not is_hidden(item)}
        return {name: item for name, item in kept.items() if name != "digest" or "constants" not in kept}
    return value


def _is_open(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_open, value))
    return value is None or isinstance(value, (bool, int, float))


def shown(value: Any) -> Any:
    """Return the stored form of a value that the user wants in clear: URLs lose their user, password and query."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return without_userinfo(value) if isinstance(value, str) else value


def without_userinfo(text: str) -> str:
    """Return a text without the user, password and query of its URLs: those may be credentials."""
    return _QUERY.sub(r"\1", _USERINFO.sub(r"\1", text))
