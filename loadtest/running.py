"""One run from command to result: calibrate, scrape, push, scrape, read, judge."""

from __future__ import annotations

import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from loadtest import workers
from loadtest.executor import Health, Load
from loadtest.metrics.rates import Objectives
from loadtest.payloads.text import Calibration, TextSource
from loadtest.report.summary import result
from loadtest.scenario import Scenario

CHAT = "/v1/chat/completions"
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)$")


class ServerError(RuntimeError):
    """The server cannot be reached or refuses the calibration request; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Target:
    """`url` without /v1; `metrics_url` for the server's own counters, or None."""

    url: str
    model: str
    api_key: str | None = None
    metrics_url: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True, slots=True)
class Options:
    target: Target
    scenario: Scenario
    load: Load
    workers: int = 1
    seed: int = 0
    objectives: Objectives = field(default_factory=Objectives)
    gpu_hour_price: float | None = None
    gpus: int = 8
    trace: str | None = None
    speed: float = 1.0


def _post(target: Target, body: dict[str, Any], timeout_s: float = 300) -> Any:
    request = urllib.request.Request(  # noqa: S310 - the operator's own server
        target.url.rstrip("/") + CHAT,
        data=orjson.dumps(body),
        headers={"content-type": "application/json", **target.headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310
            return orjson.loads(response.read())
    except urllib.error.HTTPError as e:
        raise ServerError(
            f"the server answered {e.code} to the first request: {e.read(2000).decode(errors='replace')}"
        ) from None
    except (OSError, orjson.JSONDecodeError) as e:
        raise ServerError(f"{target.url} does not answer a chat request: {e}") from None


def calibrate(target: Target, seed: int) -> Calibration:
    """Two requests of different length give the tokenizer's tokens per word on our text and the template's overhead."""
    text = TextSource(seed)
    import numpy as np

    rng = np.random.default_rng([seed, 0xCA1])
    counts = []
    for words in (200, 1200):
        body = {
            "model": target.model,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": text.words(rng, words)}],
        }
        usage = _post(target, body).get("usage") or {}
        if "prompt_tokens" not in usage:
            raise ServerError("the server's answer has no usage.prompt_tokens; tokens cannot be counted")
        counts.append(float(usage["prompt_tokens"]))
    per_word = (counts[1] - counts[0]) / 1000
    if per_word <= 0:
        raise ServerError(f"usage.prompt_tokens went from {counts[0]:.0f} to {counts[1]:.0f} for 1000 more words")
    return Calibration(per_word, max(0.0, counts[0] - 200 * per_word))


def scrape(url: str | None) -> dict[str, float]:
    """Prometheus samples of `url` summed over labels, histograms' buckets left out; empty when there is no answer."""
    if url is None:
        return {}
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310
            text = response.read().decode()
    except (OSError, ValueError):
        return {}
    out: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found and not found.group(1).endswith(("_bucket", "_created")):
            out[found.group(1)] = out.get(found.group(1), 0.0) + float(found.group(3))
    return out


def server_change(before: dict[str, float], after: dict[str, float]) -> dict[str, float] | None:
    """What the server's counters say happened during the run (whole run, warm-up included)."""
    change = {k: v - before.get(k, 0.0) for k, v in after.items() if k.endswith(("_total", "_sum", "_count"))}
    change = {k: v for k, v in change.items() if v}
    return change or None


def run(
    options: Options,
    on_progress: Callable[[list[Health], float], None] | None = None,
    *,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Raises ServerError before any load when the server is not usable, RuntimeError when a worker dies."""
    target, scenario = options.target, options.scenario
    calibration = calibration or calibrate(target, options.seed)
    job = workers.Job(
        url=target.url,
        path=CHAT,
        headers=target.headers,
        model=target.model,
        scenario=scenario.model_dump(mode="json"),
        load=options.load,
        calibration=calibration,
        seed=options.seed,
        workers=options.workers,
        trace=options.trace,
        speed=options.speed,
    )
    before = scrape(target.metrics_url)
    with tempfile.TemporaryDirectory(prefix="catalejo-loadtest-") as folder:
        outcome = workers.run(job, Path(folder), on_progress)
    after = scrape(target.metrics_url)
    config = {
        "scenario": scenario.name
        if options.trace is None
        else f"replay of {Path(options.trace).name} x{options.speed:g}",
        "url": target.url,
        "model": target.model,
        "seed": options.seed,
        "workers": options.workers,
        "tokens_per_word": calibration.tokens_per_word,
        "started_unix": time.time(),
    }
    return result(
        outcome.samples,
        outcome.health,
        options.load,
        config=config,
        objectives=options.objectives,
        gpu_hour_price=options.gpu_hour_price,
        gpus=options.gpus,
        server=server_change(before, after),
    )
