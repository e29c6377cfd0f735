"""SIGHUP: the configuration is read again, and what may change under running streams changes: keys, limits, engines,
names and routes, log level, and the certificate in the files of `tls`. All of it or nothing: a file with a mistake leaves
everything as it is, and each mistake is a line of the log. What else differs is named, and waits for a restart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from signal import SIG_IGN, SIGHUP, signal
from time import time
from typing import Any, Final

from gateway.config import ConfigError, Settings
from gateway.observability.logging import set_level
from gateway.processes.server_tls import ServerTls
from gateway.processes.sockets import ListenError
from gateway.services import Services, model_limits

log = logging.getLogger("catalejo.reload")

ADMISSION: Final = ("api_keys", "tenants", "default_limits", "max_in_flight", "max_queue", "queue_timeout_s")
MODEL: Final = ("aliases", "engines", "max_in_flight", "max_queue")
WHOLE: Final = ("model_aliases", "engines", "routes")
Path = tuple[str, ...]


class Reloader:
    """`read` gives the configuration as it is now; raises ConfigError. `tls`: of the listening port."""

    def __init__(self, read: Callable[[], Settings], services: Services, tls: ServerTls | None = None) -> None:
        self._read = read
        self._services = services
        self._tls = tls
        self._metrics = services.metrics
        self._metrics.reload_time.set(time())
        self._metrics.reload_good.set(1)

    @asynccontextmanager
    async def on_signal(self) -> AsyncIterator[None]:
        """Reloads on every SIGHUP; several that come during one reload are one more."""
        asked, loop = asyncio.Event(), asyncio.get_running_loop()

        async def watch() -> None:
            while True:
                await asked.wait()
                asked.clear()
                await self.reload()

        task = asyncio.create_task(watch(), name="reload")
        loop.add_signal_handler(SIGHUP, asked.set)
        try:
            yield
        finally:
            loop.remove_signal_handler(SIGHUP)
            signal(SIGHUP, SIG_IGN)  # a gateway that drains is not ended by it
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def reload(self) -> bool:
        """Whether the new configuration holds now."""
        try:
            new = await asyncio.to_thread(self._read)
            applied, waiting = self._apply(new)
        except ConfigError as e:
            for mistake in str(e).splitlines():
                log.error("the configuration is not reloaded: %s", mistake)
            self._done("refused")
            return False
        except Exception:
            log.exception("the configuration is not reloaded")
            self._done("refused")
            return False
        for path in waiting:
            log.warning("%s has changed and needs a restart", path)
        log.info("the configuration is reloaded; changed: %s", ", ".join(applied) or "nothing")
        self._done("applied")
        return True

    def _done(self, result: str) -> None:
        self._metrics.reloads.labels(result).inc()
        self._metrics.reload_good.set(result == "applied")
        if result == "applied":
            self._metrics.reload_time.set(time())

    def _apply(self, new: Settings) -> tuple[list[str], list[str]]:
        """(what changed now, what waits for a restart). Raises ConfigError, and has changed nothing then."""
        old, services = self._services.settings, self._services
        changed = list(differences(old, new))
        applied = [".".join(path) for path in changed if reloadable(path)]
        waiting = [".".join(path) for path in changed if not reloadable(path)]
        now = merged(old, new)
        if mistakes := mistakes_of(old, now):
            more = [f"{path} has changed too and needs a restart" for path in waiting]
            raise ConfigError("\n".join([*mistakes, *more]))
        use_certificate = self._certificate()
        self._set_engines(old, now)
        if use_certificate is not None:
            use_certificate()
            applied.append("the certificate")
        services.admission.apply(now.admission)
        services.admission.models.apply(model_limits(now))
        services.catalogue.apply(now.served, now.routes, now.admission)
        set_level(now.observability.log_level)
        services.settings = now
        return applied, waiting

    def _certificate(self) -> Callable[[], None] | None:
        try:
            return self._tls.renewed() if self._tls is not None else None
        except ListenError as e:
            raise ConfigError(f"{e}; the certificate read before stays in use") from None

    def _set_engines(self, old: Settings, new: Settings) -> None:
        models = self._services.catalogue.models
        before = {m.served_name: m.engines for m in old.served}
        done: list[str] = []
        try:
            for model in new.served:
                if model.engines != before[model.served_name]:
                    models[model.served_name].router.set_engines(model.engines)
                    done.append(model.served_name)
        except ValueError as e:
            for name in done:
                models[name].router.set_engines(before[name])
            raise ConfigError(f"engines: {e}") from None


def merged(old: Settings, new: Settings) -> Settings:
    """`old` with what can change while it runs taken from `new`."""
    admission = {name: getattr(new.admission, name) for name in ADMISSION}
    observability = {"log_level": new.observability.log_level}
    by_name = {m.served_name: m for m in new.models}
    models = [
        m.model_copy(update={field: getattr(by_name[m.served_name], field) for field in MODEL})
        if m.served_name in by_name
        else m
        for m in old.models
    ]
    return old.model_copy(
        update={
            **{name: getattr(new, name) for name in WHOLE},
            "models": models,
            "admission": old.admission.model_copy(update=admission),
            "observability": old.observability.model_copy(update=observability),
        }
    )


def mistakes_of(old: Settings, now: Settings) -> list[str]:
    """What forbids to change from `old` to `now` while running."""
    mistakes = list(now.mistakes())
    if old.admission.has_keys and not now.admission.has_keys:
        mistakes.append("admission: no API key is left; opening the gateway to everybody needs a restart")
    return mistakes


def reloadable(path: Path) -> bool:
    match path:
        case ("admission", field, *_):
            return field in ADMISSION
        case ("models", _, field, *_):
            return field in MODEL
        case ("observability", field):
            return field == "log_level"
    return path[0] in WHOLE


def differences(old: Settings, new: Settings) -> Iterator[Path]:
    """Names of the settings that differ; models by their name, other lists as a whole."""
    before, after = _leaves(old), _leaves(new)
    known = {m.served_name for m in old.models} & {m.served_name for m in new.models}
    told: set[Path] = set()
    for path in sorted(before.keys() | after.keys()):
        if path in before and path in after and before[path] == after[path]:
            continue
        if path[0] == "models" and path[1] not in known:
            path = path[:2]
        if path not in told:
            told.add(path)
            yield path


def _leaves(settings: Settings) -> dict[Path, Any]:
    values = settings.model_dump(exclude={"models"})
    return _flat({**values, "models": {m.served_name: m.model_dump() for m in settings.models}})


def _flat(values: dict[str, Any]) -> dict[Path, Any]:
    out: dict[Path, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            out |= {(name, *rest): leaf for rest, leaf in _flat(value).items()}
        else:
            out[(name,)] = value
    return out
