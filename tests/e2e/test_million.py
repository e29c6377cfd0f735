"""`catalejo bench million` at a size a CPU can do: both halves for real."""

import copy
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gateway.bench import million

GOOD = {
    "tokens": 4096, "prompt_tokens": 4096, "sparse_layers": 2, "needle_chosen_in": 2, "second_turn_cached": 3968,
    "abort_after_tokens": 1024.0, "abort_pages_in_use": 9.0, "pages_in_use_after_abort": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, None),
        ({"prompt_tokens": 4095}, "counts 4095"),
        ({"sparse_layers": 0, "needle_chosen_in": 0}, "no choice"),
        ({"needle_chosen_in": 1}, "in 1 of 2"),
        ({"second_turn_cached": 0}, "found 0 tokens"),
        ({"abort_after_tokens": 4096.0}, "after the prompt was done"),
        ({"pages_in_use_after_abort": 3.0}, "3 pages stay"),
    ],
)
def test_what_a_run_must_show(change, text):
    faults = million.faults_of(copy.deepcopy(GOOD) | change)
    assert (faults == []) if text is None else any(text in fault for fault in faults)


@pytest.mark.parametrize("quiet", [b": keep-alive\n\n", b"\n"], ids=["events", "lines"])
def test_a_keep_alive_is_no_first_token(quiet):
    """A million ids on a GPU had their first token after 15 s: it was the gateway's first keep-alive."""

    class Slow(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(quiet * 2 + b"data: 1\n\ndata: 2\n")

    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.handle_request).start()
        _, lines = million.ask(server.server_port, "/", b"", "text/plain")
    assert lines == [b"data: 1\n", b"", b"data: 2"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_gateways_half():
    report = million.mock(200_000)
    assert report["gateway_s"] > 0 and report["peak_rss_mib"] >= report["idle_rss_mib"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_long_prompt_through_gateway_and_engine():
    report = million.local(16_384, 512)
    assert report["faults"] == []
    assert report["blocks"] == 128 and report["sparse_layers"] == 2
