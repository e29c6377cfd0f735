"""One run from command to result: calibrate, scrape, push, scrape, read, judge."""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from loadtest import workers
from loadtest.load import Load
from loadtest.metrics.rates import Objectives
from loadtest.payloads.text import Calibration, TextSource
from loadtest.reading import MOST_TOKENS
from loadtest.report.summary import result
from loadtest.scenario import Scenario

CHAT = "/v1/chat/completions"
SCRAPE_BYTES = 16 << 20
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
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise ServerError(f"{target.url} does not answer a chat request: {str(e) or type(e).__name__}") from None


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
        answer = _post(target, body)
        usage = answer.get("usage") if isinstance(answer, dict) else None
        count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        if type(count) is not int or not 0 <= count <= MOST_TOKENS:
            raise ServerError("the server's answer has no usage.prompt_tokens that counts; tokens cannot be counted")
        counts.append(count)
    per_word = (counts[1] - counts[0]) / 1000
    if per_word <= 0:
        raise ServerError(f"usage.prompt_tokens went from {counts[0]} to {counts[1]} for 1000 more words")
    return Calibration(per_word, max(0.0, counts[0] - 200 * per_word))


def scrape(target: Target) -> dict[str, float]:
    """Prometheus samples of the target summed over labels, histograms' buckets left out; empty when there is no answer. The
    key goes along to the server's own address only."""
    url = target.metrics_url
    if url is None:
        return {}
    own = urlsplit(url).netloc == urlsplit(target.url).netloc
    try:
        asked = urllib.request.Request(url, headers=target.headers if own else {})  # noqa: S310
        with urllib.request.urlopen(asked, timeout=5) as response:  # noqa: S310
            text = response.read(SCRAPE_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    out: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found and not found.group(1).endswith(("_bucket", "_created")):
            with contextlib.suppress(ValueError):
                out[found.group(1)] = out.get(found.group(1), 0.0) + float(found.group(3))
    return out


def server_change(before: dict[str, float], after: dict[str, float]) -> dict[str, float] | None:
    """What the server's counters say happened during the run (whole run, warm-up included)."""
    change = {k: v - before.get(k, 0.0) for k, v in after.items() if k.endswith(("_total", "_sum", "_count"))}
    change = {k: v for k, v in change.items() if v and math.isfinite(v)}
    return change or None


def run(
    options: Options,
    on_progress: workers.OnProgress | None = None,
    *,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Raises ServerError before any load when the server is not usable, RuntimeError when a worker cannot start.

    Once load is on its way an interrupt or a worker's death ends the run early: its result is INVALID and says so."""
    target, scenario = options.target, options.scenario
    calibration = calibration or calibrate(target, options.seed)
    job = workers.Job(
        url=target.url,
        path=CHAT,
        headers=target.headers,
        model=target.model,
        scenario=scenario,
        load=options.load,
        calibration=calibration,
        seed=options.seed,
        workers=options.workers,
        trace=options.trace,
        speed=options.speed,
    )
    started = time.time()
    before = scrape(target)
    with tempfile.TemporaryDirectory(prefix="catalejo-loadtest-") as folder:
        outcome = workers.run(job, Path(folder), on_progress)
    after = scrape(target)
    config = {
        "scenario": scenario.name
        if options.trace is None
        else f"replay of {Path(options.trace).name} x{options.speed:g}",
        "url": target.url,
        "model": target.model,
        "seed": options.seed,
        "workers": options.workers,
        "tokens_per_word": calibration.tokens_per_word,
        "started_unix": started,
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
        interrupted_s=outcome.interrupted_s,
        broken=outcome.broken,
    )
