"""One of the gateway processes of `--workers N`: `python -m gateway.processes.worker ORDER`, started by the supervisor.

It takes the configuration from its supervisor, so that one that is started later serves by the same rules as the others, and
its own part of what is meant for the whole command: memory and threads."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gateway.config import Settings, load
from gateway.media.settings import MIB, MediaSettings
from gateway.processes.sockets import ListenError

log = logging.getLogger("catalejo.processes")


@dataclass(frozen=True)
class Order:
    """`settings`: a file with what holds now, the same for all. `config` and `overrides`: what the command line gave, to be
    read again on SIGHUP. `files`: a folder for uploads, when no store is configured."""

    number: int
    settings: str
    config: str | None
    overrides: dict[str, Any]
    hub: str
    port: int
    operations_port: int | None
    files: str | None


def adapted(settings: Settings, order: Order, first: Settings | None = None) -> Settings:
    """What this process serves by. `first`: what it was started with, when `settings` were read later; what the supervisor
    decided for the whole command takes the place of a field only while that is as it was, so that a change shows."""
    first = first or settings
    media = share(settings.media, first.workers, order.number)
    if order.files is not None and media.files.location == first.media.files.location:
        media = media.model_copy(update={"files": media.files.model_copy(update={"location": order.files})})
    operations, port = settings.operations, settings.port
    if operations.port == first.operations.port:
        operations = operations.model_copy(update={"port": order.operations_port})
    if port == first.port:
        port = order.port
    return settings.model_copy(update={"media": media, "operations": operations, "port": port})


def share(media: MediaSettings, processes: int, number: int) -> MediaSettings:
    """One process's part of the memory, disk and threads that the configuration gives to all."""

    def part(whole: int, least: int = 1) -> int:
        return max(least, whole // processes)

    folder = media.disk_cache_dir
    return media.model_copy(
        update={
            "image_threads": part(media.image_threads),
            "video_workers": -(-media.video_workers // processes),
            "cache_bytes": media.cache_bytes // processes,
            "max_bytes_in_flight": part(media.max_bytes_in_flight, MIB),
            "disk_cache_dir": None if folder is None else folder / f"process-{number}",
            "disk_cache_bytes": media.disk_cache_bytes // processes,
            "files": media.files.model_copy(update={"uploads_at_once": part(media.files.uploads_at_once)}),
        }
    )


def main() -> int:
    # Until it can be heeded: an operator's reload must not end a process that is starting. The supervisor repeats it.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    order = msgspec.json.decode(sys.argv[1], type=Order)
    from gateway.commands.serve import serve
    from gateway.metrics import FILES
    from gateway.observability.logging import configure
    from gateway.own_folders import hold
    from gateway.processes.client import HubClient
    from gateway.processes.metric_files import install

    hold(Path(order.hub).parent)
    first = load(order.settings)
    settings = adapted(first, order)
    configure(settings.observability)

    def reread() -> Settings:
        return adapted(load(order.config, **order.overrides), order, first)

    try:
        install(Path(os.environ[FILES]))
        return serve(settings, HubClient(Path(order.hub), order.number), reread=reread)
    except ListenError as e:
        log.error("%s", e)
        return 1


if __name__ == "__main__":
    sys.exit(main())
