"""The names of new versions: a name, a format string, a function of the arguments, or ``auto``."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any

from cachelayer.errors import InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.provenance.fingerprint import Fingerprint
from cachelayer.provenance.function_call import Call, name_of
from cachelayer.provenance.secrecy import is_secret, without_secrets
from cachelayer.versions.reference import dataset_and_plain_version

AUTO = "auto"
Naming = Callable[[Call, Fingerprint | None], str]


def check_version(name: object) -> str:
    """Return the name of a new version if it is valid.

    Raises:
        InvalidNameError: if it is invalid.
    """
    _refuse_auto(name)
    return paths.check_name("version", name)


def _refuse_auto(name: object) -> None:
    if name == AUTO:
        raise InvalidNameError(
            f"version {AUTO!r} stands for a name made from the code and the arguments of a function: decorate the "
            f'function that returns the source with storage.cacheable(dataset_id, "{AUTO}"), or choose another name'
        )


def new_name(dataset_id: str, version: str | None) -> tuple[str, str]:
    """Return the dataset and the name of a new version, from a pair or from ``"id@version"``.

    Raises:
        InvalidNameError: if one of them is invalid, or no version is named.
        InvalidArgumentError: if two versions are named.
    """
    dataset_id, name = dataset_and_plain_version(dataset_id, version)
    _refuse_auto(name)
    return dataset_id, name


def check_naming(version: object) -> None:
    """Raise if this can never name a version. :func:`naming` checks the rest, once the function is known.

    Raises:
        InvalidNameError: if it is not a name, a format string or a function.
    """
    if version != AUTO and not _is_format(version) and not callable(version):
        check_version(version)


def naming(version: str | Callable[..., str], function: Callable[..., Any], options: Mapping[str, Any]) -> Naming:
    """Return a function that names the versions of a decorated function.

    Args:
        version: a name; a format string with the function's parameters as fields; a function of the same arguments;
            or ``"auto"``.
        function: the decorated function.
        options: the submit options that decide which records a version has, as JSON; ``"auto"`` names depend on them.

    Raises:
        InvalidArgumentError: if it is a format string with fields that are not parameters of the function.
    """
    if callable(version):
        return lambda call, _: _computed(version, call)
    if version == AUTO:
        return lambda call, code: _automatic(call, code, options)
    if _is_format(version):
        _check_fields(version, function)
        return lambda call, _: _formatted(version, call)
    return lambda *_: version


def _is_format(version: object) -> bool:
    return isinstance(version, str) and ("{" in version or "}" in version)


def _automatic(call: Call, code: Fingerprint | None, options: Mapping[str, Any]) -> str:
    function = name_of(call.function)
    if code is None:
        raise InvalidArgumentError(
            f'version="{AUTO}": the source code of {function} is not available, so changes to it would go unnoticed: '
            "define it in a file, or name the version"
        )
    if call.unrecorded:
        raise InvalidArgumentError(
            f'version="{AUTO}": JSON cannot hold argument {", ".join(call.unrecorded)} of {function}, so other values '
            "would get the same name: pass a value that JSON can hold, or name the version"
        )
    # One hash over everything does not help anyone to guess a single value.
    arguments = {name: without_secrets(name, value) for name, value in call.recorded.items()}
    made = {"code": code.digest, "arguments": arguments, **options}
    return f"{AUTO}-{hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]}"


def _computed(version: Callable[..., str], call: Call) -> str:
    return _checked(version(*call.args, **call.kwargs), f"that {name_of(version)} returns")


def _formatted(text: str, call: Call) -> str:
    values = _fields_of(call)
    for field in _fields(text):
        if is_secret(field) and isinstance(values.get(field), str):
            raise InvalidArgumentError(
                f"version {text!r}: {field!r} is named like a secret, and version names are public: leave it out"
            )
    try:
        name = Formatter().vformat(text, (), values)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"version {text!r} cannot be formatted with the arguments of {name_of(call.function)}: {error!r}"
        ) from error
    return _checked(name, f"that {text!r} gives")


def _checked(name: object, origin: str) -> str:
    if name == AUTO:
        raise InvalidNameError(f"version {name!r} {origin}: choose another name")
    return paths.check_name(f"version {origin}:", name)


def _fields_of(call: Call) -> dict[str, Any]:
    """Return the values that a format string can use."""
    others = _keywords(call.function)
    return {**call.values, **(call.values.get(others, {}) if others else {})}


def _check_fields(text: str, function: Callable[..., Any]) -> None:
    try:
        fields = list(_fields(text))
    except ValueError as error:
        raise InvalidArgumentError(f"version {text!r} is not a valid format string: {error}") from error
    known = list(inspect.signature(function).parameters)
    unknown = [field for field in fields if field not in known]
    if unknown and _keywords(function) is None:
        raise InvalidArgumentError(
            f"version {text!r}: no parameter {', '.join(map(repr, unknown))} of {name_of(function)}: "
            + (f"it has {', '.join(known)}" if known else "it has none")
        )


def _keywords(function: Callable[..., Any]) -> str | None:
    """Return the name of the ``**kwargs`` parameter; None if there is none."""
    kinds = inspect.signature(function).parameters.values()
    return next((parameter.name for parameter in kinds if parameter.kind is parameter.VAR_KEYWORD), None)


def _fields(text: str) -> Iterator[str]:
    """Yield the first name of each field of a format string, including the fields within format specs."""
    for _, field, spec, _ in Formatter().parse(text):
        if field is not None:
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            yield from _fields(spec or "")
