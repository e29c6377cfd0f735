"""The server's own counters are read with the key, and no other host ever gets it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from loadtest.running import Target, scrape


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = self.headers.get("authorization")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"asked_total {1 if key == 'Bearer k' else 0}\n".encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def test_the_key_goes_to_the_servers_own_address(server: str) -> None:
    assert scrape(Target(server, "m", "k", server + "/metrics")) == {"asked_total": 1}


def test_another_address_gets_no_key(server: str) -> None:
    assert scrape(Target("http://127.0.0.1:1", "m", "k", server + "/metrics")) == {"asked_total": 0}


def test_no_answer_is_no_counters() -> None:
    assert scrape(Target("http://127.0.0.1:1", "m", "k", "http://127.0.0.1:1/metrics")) == {}
