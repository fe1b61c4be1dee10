"""URLs that are safe to show and to store: without user, password, query and fragment, which may be credentials."""

from __future__ import annotations

import re

_BEGIN = r"(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]+|[/\\]{2,})"
"""The beginning of a URL, which may have a slash too few or too many."""
_PASSWORD = re.compile(rf"({_BEGIN})[^/\\]*:(?!\d+/).*@", re.DOTALL)
"""A user with a password. A password may hold any character, so it ends at the last ``@``."""
_USER = re.compile(rf"({_BEGIN})[^/\\]*@")
_NO_HOST = re.compile(rf"({_BEGIN})(?!\[)[^/\\@]*:(?!\d*(?:[/\\?#]|$)).*", re.DOTALL)
"""A user with a password and no host. What looks like a host and a port has letters in the port."""
_WITHOUT_SCHEME = re.compile(r"^[\w.+-]+:(?![/\\])\S*@")
"""A word that may be a URL without a scheme, or a path."""
_QUERY = re.compile(rf"({_BEGIN}[^?#]*)[?#].*", re.DOTALL)
_CONTAINER = re.compile(r"(?:abfss?|wasbs?)://[^/:@]+@[^/@]+(?:/|$)")
"""Azure's own URLs name the container where others have a user."""


def without_credentials(text: str) -> str:
    """Return a text without the user, password, query and fragment of the URL in it.

    Whatever may be a password is left out, even if more is lost with it.

    Examples:
        >>> from cachelayer.support.credentials_in_urls import without_credentials
        >>> without_credentials("s3://key:secret@bucket/a?sig=x")
        's3://bucket/a'
    """
    return _QUERY.sub(r"\1", _WITHOUT_SCHEME.sub("", _without_user(text)))


def has_user(text: str) -> bool:
    """Return whether the URL in a text has a user or a password."""
    return _without_user(text) != text


def as_cause(error: BaseException) -> BaseException | None:
    """Return an error as the cause of another; None if a traceback would show a user or password in a URL."""
    link: BaseException | None = error
    while link is not None:
        if any(has_user(word) or _WITHOUT_SCHEME.match(word) for word in str(link).split()):
            return None
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return error


def _without_user(text: str) -> str:
    if _CONTAINER.match(text):
        return text
    return _NO_HOST.sub(r"\1", _USER.sub(r"\1", _PASSWORD.sub(r"\1", text)))


def without_credentials_in(message: str) -> str:
    """Return the message of a client without the credentials in its URLs. A URL is one word of the message."""
    return re.sub(r"\S+", lambda word: without_credentials(word[0]), message)
