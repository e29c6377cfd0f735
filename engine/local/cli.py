"""Starts the embedded engine. `run` is what `catalejo engine --backend local` calls; `python -m engine.local.cli
--help` lists every option. Imports nothing heavy until it runs."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import dataclasses
import inspect
import itertools
import logging
import signal
import sys
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.local.options import EngineOptions

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("catalejo.engine")


def run(options: EngineOptions | None = None, **fields: Any) -> int:
    """Serves until SIGTERM or Ctrl-C. Either `options`, or its fields as keywords (None: the default).

    Returns the exit status: 0 after a clean stop, 1 when the checkpoint cannot be served, 2 for a bad option."""
    try:
        given = {name: value for name, value in fields.items() if value is not None}
        options = options or EngineOptions(**given)
    except (TypeError, ValueError) as error:
        return _fail(str(error), 2)
    import uvicorn

    from engine.local.errors import CheckpointError
    from engine.local.server import create_app
    from engine.msa.layouts import MsaArgumentError

    logging.basicConfig(level=options.log_level.upper(), format="%(levelname)s %(name)s: %(message)s")
    try:
        app = create_app(options)
    except CheckpointError as error:
        return _fail(str(error), 1)
    except MsaArgumentError as error:
        return _fail(f"msa_kernel: {error}", 2)
    service = app.state.service
    log.info(
        "%s on %s in %s: %d pages of %d tokens, context %d",
        service.folder, service.model.device, service.model.dtype,
        service.core.n_pages, service.core.page_size, service.core.max_context,
    )  # fmt: skip
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_config=None,  # one voice: ours
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        # Running streams are ended by us after `grace_s`; this is the net below.
        timeout_graceful_shutdown=int(options.grace_s) + 5,
    )
    log.info("the engine listens on http://%s:%d (requests come through the gateway)", options.host, options.port)
    server = _server(config, app, options.grace_s)
    # The server raises the signal again once it has stopped; a stop that was asked for is no failure.
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else 1


def _server(config: uvicorn.Config, app: Any, grace_s: float) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """On the first signal: say no to new requests, let the running ones end, stop them after the grace period."""

        _ending: asyncio.Task[None] | None = None

        async def shutdown(self, sockets: Any = None) -> None:
            app.state.service.draining = True
            self._ending = asyncio.create_task(self._end_streams())
            await super().shutdown(sockets)
            self._ending.cancel()

        async def _end_streams(self) -> None:
            await asyncio.sleep(grace_s)
            app.state.service.fail_all()

    return Server(config)


def _fail(message: str, status: int) -> int:
    print(f"catalejo engine: {message}", file=sys.stderr)  # noqa: T201
    return status


def run_argv(argv: list[str], **fields: Any) -> int:
    """`run` for a command line that was partly read elsewhere: `fields` are what it said, `argv` is the rest of it."""
    return run(parse(argv, **fields))


def parse(argv: list[str] | None = None, **fields: Any) -> EngineOptions:
    """Options from a command line: every field of EngineOptions is a flag of its name, with its text as the help.

    `fields` (None: not given) stand for flags that are not repeated in `argv`."""
    given = {name: value for name, value in fields.items() if value is not None}
    parser = argparse.ArgumentParser(prog="catalejo engine --backend local", description="The embedded engine.")
    hints = typing.get_type_hints(EngineOptions)
    texts = _field_texts()
    for field in dataclasses.fields(EngineOptions):
        required = field.default is dataclasses.MISSING and field.name not in given
        default = given.get(field.name, None if field.default is dataclasses.MISSING else field.default)
        kinds = [k for k in (typing.get_args(hints[field.name]) or (hints[field.name],)) if k is not type(None)]
        flag = f"--{field.name.replace('_', '-')}"
        text = texts.get(field.name, "").replace("%", "%%")
        if not required and default is not None:
            text += f" (default: {default})"
        if kinds == [bool]:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default, help=text)
        elif isinstance(kinds[0], str):
            parser.add_argument(flag, choices=kinds, default=default, help=text)
        else:
            kind = str if Path in kinds else kinds[0]
            parser.add_argument(flag, type=kind, required=required, default=default, help=text)
    try:
        return EngineOptions(**vars(parser.parse_args(argv)))
    except ValueError as error:
        parser.error(str(error))


def _field_texts() -> dict[str, str]:
    """The text below each field of EngineOptions, so that the help and the source cannot disagree."""
    (node,) = (n for n in ast.parse(inspect.getsource(EngineOptions)).body if isinstance(n, ast.ClassDef))
    texts = {}
    for field, after in itertools.pairwise(node.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            texts[field.target.id] = " ".join(ast.literal_eval(after.value).split())
    return texts


def main() -> None:
    sys.exit(run(parse()))


if __name__ == "__main__":
    main()
