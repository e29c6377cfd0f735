"""A real gateway, started with the configuration, environment and probes that the chart renders: two processes, TLS, the
operators' port and a ledger; the `helm test` script sends its picture through it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
import yaml

from tests.api.harness import TINY
from tests.certificates import self_signed
from tests.deploy.chart.matrix import KEYS
from tests.deploy.chart.rendering import container, render
from tests.deploy.metric_names import CHART, ROOT
from tests.mock_engine import MockEngine

KEY = "0123456789abcdef-first"
VALUES = (KEYS, "gateway.workers=2", "gateway.tls.secretName=tls", "gateway.ledger.enabled=true")


def free_ports() -> tuple[int, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        first, second = (s.getsockname()[1] for s in sockets)
        return first, second


async def send_picture(port: int, trusted: Path) -> tuple[int | None, str]:
    url = f"https://127.0.0.1:{port}"
    env = {"URL": url, "MODEL": "demo", "TIMEOUT_S": "60", "CATALEJO_API_KEY": KEY, "CERTIFICATE": str(trusted)}
    command = [sys.executable, str(CHART / "files" / "send_picture.py")]
    done = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await done.communicate()
    return done.returncode, out.decode()


@pytest.mark.timeout(180)
async def test_the_charts_gateway_starts_and_serves(tmp_path: Path) -> None:
    out = render(*VALUES)
    pod = container(out.one("Deployment", "-gateway"))
    own, other = tmp_path / "tls", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        self_signed(folder / "tls.crt", folder / "tls.key", "m3.example.org")
    port, operations = free_ports()
    text = out.one("ConfigMap", "-gateway")["data"]["catalejo.yaml"].replace("/etc/catalejo-tls", str(own))
    config = yaml.safe_load(text)
    async with MockEngine(TINY, [{"pieces": ["Red."]}] * 2) as engine, aiohttp.ClientSession() as session:
        # What differs from a pod: folders, ports of this machine, an engine that is here.
        config |= {"host": "127.0.0.1", "port": port, "model_path": str(TINY)}
        config["operations"] |= {"host": "127.0.0.1", "port": operations}
        config["engines"] = [{"url": engine.url}]
        file = tmp_path / "catalejo.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "CATALEJO_ADMISSION__API_KEYS": f'["{KEY}"]'}
        [path] = [e["value"] for e in pod["env"] if e["name"] == "CATALEJO_OBSERVABILITY__LEDGER__PATH"]
        usage = Path(path.replace("$(POD_NAME)", "m3-0").replace("/var/lib/catalejo", str(tmp_path)))
        env["CATALEJO_OBSERVABILITY__LEDGER__PATH"] = str(usage)
        arguments = [sys.executable, "-m", "gateway.cli", *pod["args"][:2], str(file)]
        with (tmp_path / "log").open("wb") as log:
            gateway = await asyncio.create_subprocess_exec(*arguments, cwd=tmp_path, env=env, stdout=log, stderr=log)
        try:

            async def asked(path: str) -> int:
                async with session.get(f"http://127.0.0.1:{operations}{path}") as answer:
                    return answer.status

            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                while True:
                    assert gateway.returncode is None, (tmp_path / "log").read_text()
                    try:
                        if await asked(pod[probe]["httpGet"]["path"]) == 200:
                            break
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.1)
            assert await asked("/metrics") == await asked("/admin/engines") == 200
            async with session.get(f"https://127.0.0.1:{port}/metrics", ssl=False) as answer:
                assert answer.status == 401
            headers = {"authorization": f"Bearer {KEY}"}
            async with session.get(f"https://127.0.0.1:{port}/admin/engines", ssl=False, headers=headers) as answer:
                assert answer.status == 403
            code, said = await send_picture(port, own / "tls.crt")
            assert code == 0 and "tokens of picture" in said, said
            code, said = await send_picture(port, other / "tls.crt")
            assert code != 0 and "CERTIFICATE_VERIFY_FAILED" in said, "a certificate that is not the gateway's"
        finally:
            if gateway.returncode is None:
                gateway.terminate()
            await gateway.wait()
    assert usage.is_file() and usage.stat().st_size
