"""The loggers of this library: one for each subject, without credentials, with their values as fields of the records.

If a program sets nothing up, warnings of stalls go to stderr; ``CACHELAYER_LOG=debug`` writes all lines there.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from cachelayer.errors import CacheLayerWarning, StorageError
from cachelayer.support.credentials_in_urls import without_credentials_in

LoggerName = Literal["stores", "log", "builds", "copies", "streams", "page"]
"""The subject of a line: requests to stores; the log of a dataset; builds; local copies; streams; the web page."""
_LOGGER = logging.getLogger("cachelayer")
_FORMAT = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_LEVELS = ("debug", "info", "warning", "error")


def logger_of(name: LoggerName) -> logging.Logger:
    """Return a logger by its name below ``cachelayer``, such as ``stores``."""
    logger = logging.getLogger(f"{_LOGGER.name}.{name}")
    if _without_credentials not in logger.filters:
        logger.addFilter(_without_credentials)
    return logger


def _without_credentials(record: logging.LogRecord) -> bool:
    """Leave credentials out of a line, before any handler sees it; and make its fields attributes of the record."""
    if isinstance(record.args, Mapping):
        for name, value in record.args.items():
            setattr(record, name, value if isinstance(value, int | float) else without_credentials_in(str(value)))
    record.msg = without_credentials_in(record.getMessage())
    record.args = ()
    if record.exc_info:
        record.exc_text = without_credentials_in(_FORMAT.formatException(record.exc_info))
    return True


@contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Append the lines of all levels, also of each request, to a file within the context."""
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: the log cannot be written: {error.strerror}") from error
    level = _LOGGER.level
    _add(handler, logging.DEBUG)
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.setLevel(level)
        handler.close()


def _add(handler: logging.Handler, level: int) -> None:
    handler.setFormatter(_FORMAT)
    handler.setLevel(level)
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(level)


def _set_up() -> None:
    setting = os.environ.get("CACHELAYER_LOG")
    if setting and setting.lower() not in _LEVELS:
        # A warning: no program should end over a setting of its log.
        text = f"CACHELAYER_LOG is {setting!r}, so nothing is logged: set it to {', '.join(_LEVELS)}"
        warnings.warn(text, CacheLayerWarning, stacklevel=2)
        setting = None
    handler = logging.StreamHandler()
    # A program that sets logging up decides itself where the lines go.
    handler.addFilter(lambda _: not logging.getLogger().handlers)
    # By default it writes to stderr, and raises if the program has closed that.
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005
    if setting:
        _add(handler, logging.getLevelNamesMapping()[setting.upper()])
        return
    # A job that waits for ever must say for what, though nobody thought of its log.
    handler.addFilter(lambda record: hasattr(record, "awaited") and _LOGGER.handlers == [handler])
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_FORMAT)
    _LOGGER.addHandler(handler)


_set_up()
