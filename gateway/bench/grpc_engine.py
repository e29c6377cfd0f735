"""The benchmark's engine as smg's gRPC mode knows one: SGLang's scheduler service, one token per message, the same
clock as gateway/bench/engine.py.

A script for the interpreter that smg is installed in: it needs grpcio and smg-grpc-proto, which come with smg, and
nothing of this project. Messages are put together from ready bytes (protobuf merges what stands one after another), so
that the engine costs as little as Python's gRPC allows."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from smg_grpc_proto import sglang_scheduler_pb2 as pb

PHASES: Final = 20
IDLE_TOKENS: Final = 1_000_000
IDS: Final = tuple(range(65, 91))
SERVICE: Final = "sglang.grpc.scheduler.SglangScheduler"


class Clock:
    """Wakes the streams of one phase at a time, all phases once per period."""

    def __init__(self, rate: float) -> None:
        self._period = 1 / rate
        self._groups: list[set[asyncio.Event]] = [set() for _ in range(PHASES)]
        self._next = 0

    def add(self) -> tuple[asyncio.Event, Callable[[], None]]:
        group, tick = self._groups[self._next % PHASES], asyncio.Event()
        self._next += 1
        group.add(tick)
        return tick, lambda: group.discard(tick)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due, phase = loop.time(), 0
        while True:
            due += self._period / PHASES
            await asyncio.sleep(max(0.0, due - loop.time()))
            for tick in self._groups[phase]:
                tick.set()
            phase = (phase + 1) % PHASES


CHUNKS: Final = [
    pb.GenerateResponse(
        chunk=pb.GenerateStreamChunk(token_ids=[i], prompt_tokens=1, completion_tokens=1)
    ).SerializeToString()
    for i in IDS
]


def completed(count: int) -> bytes:
    ids = [IDS[i % len(IDS)] for i in range(count)]
    done = pb.GenerateComplete(output_ids=ids, finish_reason="length", prompt_tokens=1, completion_tokens=count)
    return bytes(pb.GenerateResponse(complete=done).SerializeToString())


class Engine:
    def __init__(self, clock: Clock, model: str) -> None:
        self._clock = clock
        self._model = model

    async def generate(self, request: Any, context: Any) -> AsyncIterator[bytes]:
        head = pb.GenerateResponse(request_id=request.request_id).SerializeToString()
        total = request.sampling_params.max_new_tokens or 1
        if not request.stream:
            yield head + completed(total)
            return
        if total >= IDLE_TOKENS:  # an idle stream, for measuring memory
            await asyncio.get_running_loop().create_future()
        if total == 1:
            yield head + CHUNKS[0]
        else:
            tick, leave = self._clock.add()
            try:
                for sent in range(total):
                    await tick.wait()
                    tick.clear()
                    yield head + CHUNKS[sent % len(CHUNKS)]
            finally:
                leave()
        yield head + completed(total)

    async def health(self, request: Any, context: Any) -> Any:
        return pb.HealthCheckResponse(healthy=True)

    async def abort(self, request: Any, context: Any) -> Any:
        return pb.AbortResponse(success=True)

    async def model_info(self, request: Any, context: Any) -> Any:
        return pb.GetModelInfoResponse(
            model_path=self._model, tokenizer_path=self._model, served_model_name="tiny", is_generation=True,
            max_context_length=131072, vocab_size=512,
        )  # fmt: skip

    async def server_info(self, request: Any, context: Any) -> Any:
        return pb.GetServerInfoResponse(server_type="grpc")

    async def loads(self, request: Any, context: Any) -> Any:
        return pb.GetLoadsResponse(dp_rank_count=1)


async def serve(port: int, rate: float, model: str) -> None:
    clock = Clock(rate)
    engine = Engine(clock, model)

    def unary(call: Any, asked: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(call, asked.FromString, lambda answer: answer.SerializeToString())

    handlers = {
        "Generate": grpc.unary_stream_rpc_method_handler(engine.generate, pb.GenerateRequest.FromString, None),
        "HealthCheck": unary(engine.health, pb.HealthCheckRequest),
        "Abort": unary(engine.abort, pb.AbortRequest),
        "GetModelInfo": unary(engine.model_info, pb.GetModelInfoRequest),
        "GetServerInfo": unary(engine.server_info, pb.GetServerInfoRequest),
        "GetLoads": unary(engine.loads, pb.GetLoadsRequest),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await clock.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.rate, options.model))
