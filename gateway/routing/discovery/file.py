"""Engines from a file: a YAML or JSON list of what `engines` takes, read again when it was replaced.

Polled, since notifications do not cross network file systems and a ConfigMap's files are changed by swapping a link. A
file that is missing or wrong leaves the last good list in place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from gateway import yaml_text
from gateway.routing.discovery.base import Failed, Publish
from gateway.routing.discovery.settings import FileDiscovery
from gateway.routing.settings import EngineEndpoint

log = logging.getLogger("catalejo.discovery")
MAX_BYTES = 4 << 20
_LIST: TypeAdapter[list[EngineEndpoint]] = TypeAdapter(list[EngineEndpoint])


class BadList(ValueError):
    """The file holds no list of engines; the text says why."""


class FileSource:
    def __init__(self, settings: FileDiscovery, failed: Failed) -> None:
        self._path = settings.path
        self._interval_s = settings.interval_s
        self._failed = failed
        self._seen: tuple[int, int, int] | None = None
        self._last: Sequence[EngineEndpoint] | None = None
        self._told = ""

    async def run(self, publish: Publish) -> None:
        while True:
            try:
                engines = await asyncio.to_thread(self._read)
            except Exception as e:  # whatever somebody wrote there: the list known stays
                self._failed("file")
                reason = _reason(e)
                if reason != self._told:
                    kept = "no engines yet" if self._last is None else f"keeping the {len(self._last)} known engines"
                    log.error("%s: %s; %s", self._path, reason, kept)
                self._told = reason
            else:
                if engines is not None:
                    self._told = ""
                    if engines != self._last:
                        publish(engines)
                    self._last = engines
            await asyncio.sleep(self._interval_s)

    def _read(self) -> list[EngineEndpoint] | None:
        """None when the file is as it was at the last look, good or bad."""
        status = self._path.stat()
        now = (status.st_ino, status.st_mtime_ns, status.st_size)
        if now == self._seen:
            return None
        if status.st_size > MAX_BYTES:
            raise BadList(f"it has {status.st_size} bytes, the limit is {MAX_BYTES}")
        text = self._path.read_bytes()
        self._seen = now
        return parse(text)


def _reason(error: Exception) -> str:
    match error:
        case BadList():
            return str(error)
        case OSError(strerror=str(reason)):
            return reason
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def parse(text: bytes) -> list[EngineEndpoint]:
    """Raises BadList. An empty file is no list: it may be one that is being written; `[]` is one."""
    try:
        engines = _LIST.validate_python(yaml_text.parse(text))
    except ValidationError as e:
        first = e.errors()[0]
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        raise BadList(f"engines{where}: {first['msg']}") from None
    except ValueError as e:
        raise BadList(f"it is neither YAML nor JSON: {e}") from None
    names = [e.name for e in engines if e.name]
    if twice := {n for n in names if names.count(n) > 1}:
        raise BadList(f"engines: names must differ, {min(twice)} is there twice")
    return engines
