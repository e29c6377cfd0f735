"""python -m tests.mock_engine --port P --model PATH [--script FILE]"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from pathlib import Path

from tests.mock_engine.script import ScriptError, load_script, parse_script
from tests.mock_engine.server import MockEngine
from tests.mock_engine.state import Options

TINY = Path(__file__).resolve().parents[2] / "engine" / "checkpoints" / "tiny"


def parse_arguments() -> argparse.Namespace:
    defaults = Options(TINY)
    parser = argparse.ArgumentParser(prog="python -m tests.mock_engine", description="A scripted engine.")
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=0, help="0: any free port; the address is printed")
    parser.add_argument("--model", default=str(TINY), help="folder with tokenizer.json and config.json")
    parser.add_argument("--script", help="JSON list of answers (tests/mock_engine/script.py); default: an echo")
    parser.add_argument("--token", help="bearer token to require")
    parser.add_argument("--page-size", type=int, default=defaults.page_size)
    parser.add_argument("--keep-alive-s", type=float, default=defaults.keep_alive_s)
    parser.add_argument("--max-body-bytes", type=int, default=defaults.max_body_bytes)
    parser.add_argument("--step-ms", type=float, default=0, help="pause before each token of the built-in echo")
    parser.add_argument("--incremental", action="store_true", help="stock /generate streams only what is new")
    parser.add_argument("--stock-only", action="store_true", help="no contract route")
    arguments = parser.parse_args()
    try:
        load_script(arguments.script)
        arguments.answers = json.loads(Path(arguments.script).read_text() or "[]") if arguments.script else []
        parse_script(arguments.answers)
    except (OSError, ScriptError) as e:
        parser.error(str(e))
    return arguments


async def serve(arguments: argparse.Namespace) -> None:
    engine = MockEngine(
        arguments.model,
        arguments.answers,
        host=arguments.host,
        port=arguments.port,
        token=arguments.token,
        page_size=arguments.page_size,
        keep_alive_s=arguments.keep_alive_s,
        max_body_bytes=arguments.max_body_bytes,
        step_ms=arguments.step_ms,
        incremental=arguments.incremental,
        stock_only=arguments.stock_only,
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with engine:
        print(f"mock engine listening on {engine.url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(serve(parse_arguments()))
