"""The command line: what it prints, and with which status it ends."""

from __future__ import annotations

import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from typer.testing import CliRunner

from gateway import version
from gateway.cli import app
from gateway.commands.up import curl_line
from tests.api.harness import TINY
from tests.fixtures.media.png import png

run = CliRunner()


def test_version() -> None:
    assert run.invoke(app, ["--version"]).output.strip() == f"catalejo {version()}"


def test_help_names_every_command() -> None:
    output = run.invoke(app, ["--help"]).output
    assert all(name in output for name in ("gateway", "engine", "up", "preprocess", "doctor", "bench"))


def test_print_config_is_a_config_file(tmp_path: Path) -> None:
    args = ["gateway", "--model", str(TINY), "--engine", "http://e:1", "--port", "81", "--print-config"]
    first = run.invoke(app, args)
    assert first.exit_code == 0
    file = tmp_path / "c.yaml"
    file.write_text(first.output)
    again = run.invoke(app, ["gateway", "--config", str(file), "--print-config"])
    assert yaml.safe_load(again.output) == yaml.safe_load(first.output)
    assert yaml.safe_load(first.output)["port"] == 81


def test_print_config_hides_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {
        "models": [
            {"name": "a", "model_path": str(TINY), "engine_token": "SECRET-1", "aliases": ["b"]},
            {"name": "c", "model_path": str(TINY), "engines": [{"url": "http://u:SECRET-2@e:1", "token": "SECRET-3"}]},
        ],
        "admission": {"tenants": [{"name": "t", "api_keys": ["SECRET-4"]}], "redis_url": "redis://:SECRET-5@r:1"},
    }
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("CATALEJO_ADMISSION__API_KEYS", '["SECRET-6"]')
    output = run.invoke(app, ["gateway", "--config", str(file), "--print-config"]).output
    assert "SECRET" not in output and output.count("**********") == 6
    assert yaml.safe_load(output)["models"][1]["engines"][0]["url"] == "http://**********@e:1"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["gateway"], 2, "model_path"),
        (["gateway", "--model", "/nowhere"], 2, "no checkpoint folder"),
        (["gateway", "--config", "/nowhere.yaml"], 2, "/nowhere.yaml"),
        (["engine", "--backend", "vllm"], 2, "unknown backend"),
        (["engine", "--model", "/nowhere"], 2, "no checkpoint folder"),
        (["up", "--model", "/nowhere"], 1, "no checkpoint folder"),
        (["preprocess", "/nowhere.png"], 2, "cannot be read"),
        (["preprocess", __file__], 2, "unsupported_format"),
        (["preprocess", __file__, "--size-rule", "golden"], 2, "size rule"),
    ],
)
def test_mistakes_are_one_clear_line(args: list[str], code: int, said: str) -> None:
    result = run.invoke(app, args)
    assert result.exit_code == code, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_up_says_when_the_port_is_taken() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        result = run.invoke(app, ["up", "--port", str(s.getsockname()[1])])
    assert result.exit_code == 1
    assert "choose another with --port" in result.output


def test_preprocess_prints_the_contract(tmp_path: Path) -> None:
    import numpy as np

    file = tmp_path / "a.png"
    file.write_bytes(png(300, 200))
    result = run.invoke(
        app, ["preprocess", str(file), "--json", "--size-rule", "area", "--npz", str(tmp_path / "o.npz")]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert set(report) == {
        "kind", "width", "height", "resized_hw", "grid_thw", "tokens", "source_key", "hash", "rows_sha256", "ms",
    }  # fmt: skip
    t, h, w = report["grid_thw"]
    assert (report["kind"], report["width"], report["height"]) == ("image", 300, 200)
    assert report["resized_hw"] == [h * 14, w * 14]
    assert report["tokens"] == t * h * w // 4
    rows = np.load(tmp_path / "o.npz")["patches"]
    assert rows.shape == (t * h * w, 1176) and rows.dtype == np.float32


def test_doctor_passes_here() -> None:
    result = run.invoke(app, ["doctor", "--model", str(TINY)])
    assert result.exit_code == 0, result.output
    assert "FAIL" not in result.output
    assert run.invoke(app, ["doctor", "--engine", "http://127.0.0.1:9"]).exit_code == 1


@pytest.fixture
def locked_engine() -> Iterator[int]:
    """The port of a server that wants the user `me` with the password `p@ss`."""

    class Locked(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers["authorization"] == "Basic " + b64encode(b"me:p@ss").decode()
            self.send_response(200 if known else 401)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Locked) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_doctor_asks_engines_with_the_user_and_password_of_their_urls(locked_engine: int) -> None:
    """Symptom: `u:p@host` was looked up as a host's name."""
    good, wrong = (f"http://me:{password}@127.0.0.1:{locked_engine}" for password in ("p%40ss", "other"))
    result = run.invoke(app, ["doctor", "--engine", good])
    assert result.exit_code == 0, result.output
    assert f"ok    http://**********@127.0.0.1:{locked_engine}: /health answered 200" in result.output
    result = run.invoke(app, ["doctor", "--engine", wrong, "--engine", "ftp://host", "--engine", "http://h:99999"])
    assert result.exit_code == 1 and "other" not in result.output
    assert "(/health answered 401)" in result.output
    assert "FAIL  ftp://host: " in result.output and "FAIL  http://h:99999: the port of the URL" in result.output


def test_curl_line_can_be_pasted() -> None:
    line = curl_line("http://x", "m")
    body = line.split(" -d ")[1]
    assert body[0] == body[-1] == "'" and "'" not in body[1:-1]
    assert json.loads(body[1:-1])["messages"][0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


def test_a_config_file_that_is_no_text_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    result = run.invoke(app, ["gateway", "--config", str(file)])
    assert result.exit_code == 2
    assert "wrong configuration" in result.output and "not UTF-8" in result.output


def test_rows_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    picture = tmp_path / "p.png"
    picture.write_bytes(png(64, 64))
    result = run.invoke(app, ["preprocess", str(picture), "--npz", str(tmp_path / "none" / "x.npz")])
    assert result.exit_code == 2
    assert "cannot be written" in result.output and "Traceback" not in result.output


def test_doctor_looks_at_every_model_of_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    engines = [{"url": "http://127.0.0.1:9"}]
    models = [{"name": "a", "model_path": str(TINY)}, {"name": "b", "model_path": "/nowhere", "engines": engines}]
    file.write_text(yaml.safe_dump({"models": models}))
    result = run.invoke(app, ["doctor", "--config", str(file)])
    assert result.exit_code == 1
    assert "serves a, b" in result.output
    assert "ok    model a" in result.output
    assert "FAIL  model b: there is no checkpoint folder /nowhere" in result.output
    assert "FAIL  http://127.0.0.1:9" in result.output


def test_doctor_tries_the_ports_the_certificate_and_redis(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        settings = {
            "model_path": str(TINY),
            "port": 0,
            "operations": {"port": port},
            "tls": {"certificate": str(file), "key": str(file)},
            "admission": {"redis_url": f"unix://{tmp_path}/none.sock"},
        }
        file.write_text(yaml.safe_dump(settings))
        result = run.invoke(app, ["doctor", "--config", str(file)])
    assert result.exit_code == 1 and "Traceback" not in result.output
    assert "ok    port 0" in result.output
    assert f"FAIL  port {port}: cannot listen" in result.output
    assert "FAIL  tls: " in result.output
    assert "FAIL  redis: ConnectionError" in result.output
