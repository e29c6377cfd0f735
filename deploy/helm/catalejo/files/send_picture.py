"""Sends a small picture, red above blue, and checks that an answer with vision tokens comes back. Standard library only."""

import base64
import json
import os
import ssl
import struct
import sys
import time
import urllib.error
import urllib.request
import zlib


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(side=112):
    rows = (b"\0" + b"\xe0\x20\x20" * side) * (side // 2) + (b"\0" + b"\x20\x40\xe0" * side) * (side // 2)
    header = chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def trust():
    """Only the gateway's own certificate, whoever signed it and whatever its names: it is asked by its Service's name."""
    if not (file := os.environ.get("CERTIFICATE")):
        return None
    context = ssl.create_default_context(cafile=file)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def ask(content):
    body = {"model": os.environ["MODEL"], "max_tokens": 16, "messages": [{"role": "user", "content": content}]}
    headers = {"content-type": "application/json"}
    if key := os.environ.get("CATALEJO_API_KEY"):
        headers["authorization"] = "Bearer " + key
    url = os.environ["URL"].rstrip("/") + "/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    timeout = float(os.environ.get("TIMEOUT_S", "120"))
    with urllib.request.urlopen(request, timeout=timeout, context=trust()) as response:  # noqa: S310
        return json.load(response)


def main():
    text = {"type": "text", "text": "What is in this picture?"}
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    started = time.monotonic()
    try:
        with_picture = ask([text, {"type": "image_url", "image_url": {"url": url}}])
        without = ask([text])
    except urllib.error.HTTPError as error:
        sys.exit(f"FAILED: HTTP {error.code}: {error.read()[:2000].decode('utf-8', 'replace')}")
    except OSError as error:
        sys.exit(f"FAILED: {os.environ['URL']}: {error}")
    seen = with_picture["usage"]["prompt_tokens"] - without["usage"]["prompt_tokens"]
    # 112 x 112 pixels are 4 x 4 merged patches: 16 tokens, and two brackets.
    if seen < 16 or not with_picture["usage"]["completion_tokens"]:
        sys.exit(f"FAILED: the picture made {seen} prompt tokens; answer: {json.dumps(with_picture)[:2000]}")
    message = with_picture["choices"][0]["message"]
    answer = message.get("content") or message.get("reasoning_content")
    print(f"ok in {time.monotonic() - started:.1f} s, {seen} tokens of picture: {answer!r}")  # noqa: T201


main()
