"""Logs are JSON, one object a line, on standard output. Texts of requests are not in them unless asked for."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}

_TELLS_ALL = ("uvicorn.error", "websockets", "multipart", "python_multipart", "httpcore2", "asyncio")
"""Libraries that log, at debug level, headers (API keys) and messages (texts): never that."""


class JsonFormatter(logging.Formatter):
    """`log.info("spoken", extra={"request_id": ...})` -> {"time", "level", "logger", "message", "request_id", ...}."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    """Send everything, uvicorn's lines too, through one JSON handler."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.root.handlers[:] = [handler]
    logging.root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
    for name in _TELLS_ALL:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.root.level))
