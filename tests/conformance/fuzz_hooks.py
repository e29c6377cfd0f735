"""schemathesis hooks: most random bodies name the served model, or every request would end at "unknown model"."""

from __future__ import annotations

from typing import Any

import schemathesis

KEPT_EVERY = 8
_seen = 0


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    global _seen
    _seen += 1
    if isinstance(body, dict) and _seen % KEPT_EVERY:
        if "model" in body:
            body["model"] = "tiny"
        if body.get("ignore_eos") is True:  # the echoing engine would then speak until the context is full
            body["max_tokens"] = 16
    return body
