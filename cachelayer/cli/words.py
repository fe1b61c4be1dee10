"""Say what the packages below say in the words of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

_ARGUMENT = re.compile(
    r"""(?<![\w.-])([a-z_]+)=(True|False|None|\.\.\.|'[^']*'|"[^"]*"|\[[^\]]*\]|[\d.]+(?=\W|$)|(?!\S))"""
)
"""An argument of a Python call, such as ``force=True``, ``engine='spark'`` or, to be passed, ``max_records=``."""
_ALTERNATIVE = re.compile(r",? or (?:pass )?[a-z_]+=[^;:]*?(?=$|[;:]|\. )")
"""The last of several remedies, if only Python has it."""
_WITHOUT_VALUE = re.compile(r"(?<![\w.-])([a-z_]+)=(?=[\s.,;:)]|$)")
_CALLS = {
    'by cacheable(..., "auto")': "STORAGE/ID@auto",
    "storage.rewrite()": "`cachelayer rewrite`",
    "storage.rewrite(...": "`cachelayer rewrite` (...",
    "storage.cache()": "`cachelayer build`",
    "delete(..., ": "`cachelayer rm` (",
    "storage.repair(": "`cachelayer repair` (",
    "mirror()": "`cachelayer mirror`",
    "with storage_options=": "with --option",
    "storage_options": "--option",
}


def in_options(text: str, parameters: Mapping[str, click.Parameter]) -> str:
    """Return an error or a warning of the packages below in the words of a command.

    Arguments of Python become the command's options; a remedy that only Python has is left out if there is another.

    Args:
        text: the message.
        parameters: the parameters of the command, by name.
    """

    def spelled(match: re.Match[str]) -> str:
        name, value = match.groups()
        parameter = parameters.get(name)
        if parameter is None:
            return match[0]
        if not isinstance(parameter, click.Option):
            return str(parameter.metavar)
        yes = parameter.opts[0]
        if parameter.is_flag:
            return parameter.secondary_opts[0] if value == "False" and parameter.secondary_opts else yes
        if value == "None":
            return f"no {yes}"
        values = re.findall(r"[^\s,'\"\[\]]+", value)
        return " ".join(f"{yes} {one}" for one in values) or yes

    for call, words in _CALLS.items():
        text = text.replace(call, words)
    text = _ALTERNATIVE.sub("", _ARGUMENT.sub(spelled, text))

    def named(match: re.Match[str]) -> str:
        parameter = parameters.get(match[1])
        return parameter.opts[0] if isinstance(parameter, click.Option) else f"{match[1]}, in Python"

    return _WITHOUT_VALUE.sub(named, text)
