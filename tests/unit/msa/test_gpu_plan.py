"""The plan of GPU work survives what its items do, and takes up where it stopped."""

import json

import pytest

from engine.bench import gpu_plan
from engine.bench.gpu_plan import Item, Results, main, run

WRITES = "import sys, json; json.dump({'us': 7}, open(sys.argv[1], 'w')); print('measured')"
HALF_WRITES = "import sys, time; f = open(sys.argv[1], 'w'); f.write('{\"us\":'); f.flush(); time.sleep(60)"
ITEMS = (
    Item("good", ("-c", WRITES, "{json}"), 60),
    Item("crashes", ("-c", "import os; print('last words', flush=True); os.abort()"), 60),
    Item("hangs", ("-c", HALF_WRITES, "{json}"), 2),
    Item("unserved", ("-c", ""), 60, needs=("no_such_module",)),
    Item("peer", ("-c", "", "{sglang}"), 60, peer="sglang"),
    Item("after", ("-c", WRITES, "{json}"), 60),
)


def test_one_bad_item_costs_itself_only(tmp_path):
    assert run(ITEMS, Results(tmp_path, None), 100, False, {}) == 2
    kept = json.loads((tmp_path / "results.json").read_text())["items"]
    status = {name: item["status"] for name, item in kept.items()}
    assert status == {"good": "ok", "crashes": "failed", "hangs": "cut off", "unserved": "skipped", "peer": "skipped",
                      "after": "ok"}  # fmt: skip
    assert kept["after"]["figures"] == {"us": 7} and kept["hangs"]["figures"] is None
    assert "last words" in kept["crashes"]["tail"] and kept["crashes"]["rc"] != 0
    assert kept["unserved"]["why"] == "missing here: no_such_module"
    assert "measured" in (tmp_path / "log.txt").read_text()


def test_a_later_run_does_what_is_left(tmp_path, capsys):
    first = Results(tmp_path / "a", None)
    run(ITEMS[:2], first, 100, False, {})
    again = Results(tmp_path / "b", tmp_path / "a" / "results.json")
    run((*ITEMS[:2], ITEMS[5]), again, 100, False, {})
    assert capsys.readouterr().out.count("done before") == 2
    assert set(again.items) == {"good", "crashes", "after"}


def test_no_item_begins_without_time(tmp_path):
    results = Results(tmp_path, None)
    assert run(ITEMS[:1], results, 1, False, {}) == 0
    assert results.items["good"]["status"] == "skipped"


def test_items_have_their_names_once_and_their_checks_are_real():
    names = [item.name for item in gpu_plan.ITEMS]
    assert len(set(names)) == len(names)
    for item in gpu_plan.ITEMS:
        for command in filter(None, (item.command, item.check)):
            assert command[0] == "-m"


def test_the_way_without_a_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert main(["--out", str(tmp_path)]) == 2
    assert main(["--out", str(tmp_path), "--only", "fast"]) == 2
    assert "'fast' is not one of build" in capsys.readouterr().err
    assert main(["--list"]) == 0
    assert main(["--out", str(tmp_path), "--check", "--only", "build"]) == 0
    assert "no form without a GPU" in capsys.readouterr().out


@pytest.mark.slow
def test_checks_run(tmp_path):
    assert main(["--out", str(tmp_path), "--check"]) == 0, (tmp_path / "log.txt").read_text()[-3000:]
