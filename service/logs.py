"""Log lines: one a record, for people or for machines, to standard error. Never a caller's text or key."""

from __future__ import annotations

import functools
import logging
import sys
import time
from typing import Any

import orjson

from service.settings import Settings


class JsonFormatter(logging.Formatter):
    """One JSON object a line; the record's `fields` stand beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, message, the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_utc(record.created)} {record.levelname:<7} {record.getMessage()}"
        for name, value in getattr(record, "fields", {}).items():
            line += f" {name}={value}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_fields(logger: logging.Logger, level: int, message: str, fields: dict[str, Any]) -> None:
    """One record with fields, without the search for the calling line that costs more than the line itself."""
    if logger.isEnabledFor(level):
        record = logging.LogRecord(logger.name, level, "", 0, message, None, None)
        record.fields = fields
        logger.handle(record)


def _utc(created_s: float) -> str:
    return f"{_utc_second(int(created_s))}.{int(created_s % 1 * 1000):03d}Z"


@functools.lru_cache(maxsize=2)
def _utc_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def configure_logging(settings: Settings) -> None:
    """Send every logger's lines of `log_level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # The server's own chatter (started, waiting for connections) says nothing that our lines do not.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    # No format of ours shows these; looking them up costs a third of a record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
