"""Engines from DNS and from a file: what is wrong now leaves the last good list, and is told once."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.routing.discovery import DiscoverySettings, make_source
from gateway.routing.discovery.dns import DnsSource
from gateway.routing.discovery.file import BadList, FileSource, parse
from gateway.routing.discovery.settings import DnsDiscovery, FileDiscovery
from gateway.routing.settings import EngineEndpoint


class Seen:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.failures = 0

    def publish(self, found: Sequence[EngineEndpoint]) -> None:
        self.lists.append([e.url for e in found])

    def failed(self, source: str) -> None:
        self.failures += 1


class Names:
    """A resolver by script: addresses, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def __call__(self, name: str, port: int) -> list[str]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)


NXDOMAIN = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def lookups(names: Names, clock: Any = lambda: 0.0, **settings: Any) -> Seen:
    seen = Seen()
    source = DnsSource(DnsDiscovery(name="engine", port=30000, **settings), seen.failed, names, clock)
    while names.answers:
        await source.look(seen.publish)
    return seen


async def test_every_address_is_an_engine_in_a_stable_order() -> None:
    seen = await lookups(
        Names(["10.0.0.10", "fd00::1", "10.0.0.9"], ["10.0.0.9", "10.0.0.10", "fd00::1"], ["10.0.0.9"])
    )
    assert seen.lists == [
        ["http://10.0.0.9:30000", "http://10.0.0.10:30000", "http://[fd00::1]:30000"],
        ["http://10.0.0.9:30000"],
    ]


async def test_failures_keep_the_last_answer_for_a_while_and_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    times = iter(float(t) for t in (0, 0, 100, 200, 301, 302, 303))
    clock = lambda: next(times)  # noqa: E731
    answers = (["10.0.0.1"], NXDOMAIN, TimeoutError(), NXDOMAIN, NXDOMAIN, ["10.0.0.2"])
    seen = await lookups(Names(*answers), clock, keep_s=300)
    assert seen.lists == [["http://10.0.0.1:30000"], [], ["http://10.0.0.2:30000"]]
    assert seen.failures == 4
    assert "its 1 engines are dropped" in caplog.text


async def test_the_systems_resolver_is_asked() -> None:
    seen = Seen()
    source = DnsSource(DnsDiscovery(name="localhost", port=1234, interval_s=0.01), seen.failed)
    task = asyncio.create_task(source.run(seen.publish))
    async with asyncio.timeout(10):
        while not seen.lists:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "http://127.0.0.1:1234" in seen.lists[0] or "http://[::1]:1234" in seen.lists[0]


async def test_a_file_is_followed_and_a_broken_one_keeps_the_last_list(tmp_path: Path, caplog: Any) -> None:
    path, seen = tmp_path / "engines.yaml", Seen()
    task = asyncio.create_task(FileSource(FileDiscovery(path=path, interval_s=0.005), seen.failed).run(seen.publish))

    def write(text: str) -> None:
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", path)

    async def until(test: Any) -> None:
        async with asyncio.timeout(10):
            while not test():
                await asyncio.sleep(0.005)

    await until(lambda: seen.failures)
    assert not seen.lists, "a file that is not there yet is no list of none"
    write("- {url: 'http://a:1', name: a}\n- url: http://b:2\n")
    await until(lambda: seen.lists == [["http://a:1", "http://b:2"]])
    for broken in ("- url: [", "- url: !!timestamp abc"):
        failures, lines = seen.failures, len(caplog.records)
        write(broken)
        await until(lambda failures=failures: seen.failures > failures)
        [line] = caplog.records[lines:]
        assert "keeping the 2 known engines" in line.message and "\n" not in line.message
    os.unlink(path)
    await until(lambda: "No such file" in caplog.text.split("keeping the 2")[-2])
    write('[{"url": "http://c:3"}]')
    await until(lambda: seen.lists[-1] == ["http://c:3"])
    write("[]")
    await until(lambda: seen.lists[-1] == [])
    assert len(seen.lists) == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "valid list"),
        ("url: http://a", "valid list"),
        ("- http://a", r"engines\[0\]"),
        ("- {url: ftp://a}", r"engines\[0\].url"),
        ("- {url: 'http://a', nmae: x}", r"engines\[0\].nmae"),
        ("- {url: 'http://a', name: x}\n- {url: 'http://b', name: x}", "x is there twice"),
        ("\x00", "neither YAML nor JSON"),
        ("- {url: !!bool abc}", "this is no bool at line 1, column 9"),
        ('- {url: !!int ""}', "this is no int"),
        ("- {404: x, url: 'http://a'}", r"engines\[0\].404"),
        ("[" * 3000, "nested too deeply"),
        ("- url: http://a:99999", r"engines\[0\].url: .*port"),
        ("- url: http://a\n  name: !!python/object:os.system x", "neither YAML nor JSON"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, reason: str) -> None:
    with pytest.raises(BadList, match=reason) as refused:
        parse(text.encode())
    assert len(str(refused.value).splitlines()) == 1


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(BadList, match="neither YAML nor JSON"):
        parse(b"\xff\xfe\xfa")


def test_a_source_needs_its_part() -> None:
    with pytest.raises(ValueError, match=r"discovery\.dns must be given"):
        DiscoverySettings(source="dns")
    assert make_source(DiscoverySettings(), None) is None  # type: ignore[arg-type]
