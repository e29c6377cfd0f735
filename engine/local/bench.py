"""Throughput of the embedded engine by number of parallel streams: `python -m engine.local.bench [--model PATH] [--url URL]`.

Without --url the core is stepped directly; with it, a running engine answers real requests. Prints
one line per level: tokens per second, and the ratio to one stream. Timings are only as quiet as the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

import numpy as np

from engine.local.options import EngineOptions

TINY = Path(__file__).parents[1] / "checkpoints" / "tiny"
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def prompts(count: int, length: int, vocab: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, vocab, length, dtype=np.uint32) for _ in range(count)]


def core_rate(core: object, streams: int, prompt_tokens: int, output_tokens: int) -> float:
    """Output tokens per second, prefill not counted."""
    from engine.local.core import Core
    from engine.local.sampling import Sampling
    from engine.local.sequence import Request

    assert isinstance(core, Core)
    vocab = core.model.text_config.vocab_size
    sampling = Sampling.of(GREEDY | {"max_new_tokens": output_tokens}, (), vocab)
    for i, ids in enumerate(prompts(streams, prompt_tokens, vocab - 32)):
        core.add(Request(rid=str(i), prompt=ids, sampling=sampling, salt=str(time.monotonic_ns())))
    while any(s.pending > 1 for s in [*core.scheduler.waiting, *core.scheduler.running]):
        core.step()
    before, began = core.totals.decode_tokens, time.perf_counter()
    while core.busy:
        core.step()
    return (core.totals.decode_tokens - before) / (time.perf_counter() - began)


async def http_rate(url: str, streams: int, prompt_tokens: int, output_tokens: int, vocab: int) -> float:
    """Output tokens per second from the first request sent to the last byte read."""
    import aiohttp

    from engine import wire

    async def one(session: aiohttp.ClientSession, i: int, ids: np.ndarray) -> int:
        request = wire.GenerateRequest(
            rid=f"{time.monotonic_ns()}-{i}",
            input_ids=ids,
            sampling=GREEDY | {"max_new_tokens": output_tokens},
            cache_salt=str(time.monotonic_ns()),
        )
        reader, count = wire.ReplyReader(), 0
        async with session.post(url + wire.ROUTE, data=b"".join(wire.encode_request(request))) as response:
            response.raise_for_status()
            async for data in response.content.iter_any():
                count += sum(len(r.output_ids) for r in reader.feed(data) if isinstance(r, wire.Tokens))
        return count

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        work = prompts(streams, prompt_tokens, vocab - 32)
        counts = await asyncio.gather(*(one(session, i, ids) for i, ids in enumerate(work)))
        return sum(counts) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--url", help="measure over HTTP against a running engine")
    args = parser.parse_args()
    sizes = (args.prompt_tokens, args.output_tokens)
    if args.url:
        import json
        import urllib.request

        with urllib.request.urlopen(args.url + "/model_info") as response:  # noqa: S310 - the caller's own engine
            vocab = json.load(response)["vocab_size"]

        def rate(streams: int) -> float:
            return asyncio.run(http_rate(args.url, streams, *sizes, vocab))
    else:
        from engine.local.checkpoint import locate, pick_device
        from engine.local.core import Core
        from engine.local.model import Model

        core = Core(Model(locate(args.model), device=pick_device("auto")), EngineOptions(model=args.model))

        def rate(streams: int) -> float:
            return core_rate(core, streams, *sizes)

    rate(1)
    base = 0.0
    for streams in args.streams:
        best = max(rate(streams) for _ in range(args.repeats))
        base = base or best
        print(f"{streams:4d} streams  {best:9.1f} tokens/s  {best / base:5.2f} x one stream")  # noqa: T201


if __name__ == "__main__":
    main()
