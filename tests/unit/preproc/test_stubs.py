"""preproc_rs.pyi says what the built module has, name by name and parameter by parameter."""

import ast
import inspect
from pathlib import Path

import preproc_rs

STUB = ast.parse((Path(__file__).resolve().parents[3] / "preproc_rs.pyi").read_text())


def parameters(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def test_every_function_has_its_parameters():
    stubs = {n.name: parameters(n) for n in STUB.body if isinstance(n, ast.FunctionDef)}
    built = {
        name: list(inspect.signature(value).parameters)
        for name, value in vars(preproc_rs.preproc_rs).items()
        if inspect.isbuiltin(value)
    }
    if not preproc_rs.HAS_VIDEO:
        built["prepare_video"] = stubs["prepare_video"]
    assert built == stubs


def test_every_class_has_its_attributes():
    for node in STUB.body:
        if isinstance(node, ast.ClassDef) and node.name != "PreprocError":
            stubs = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            built = {n for n in vars(getattr(preproc_rs, node.name)) if not n.startswith("__")}
            assert built == stubs - {"__init__"}, node.name


def test_every_constant_is_there():
    names = {n.target.id for n in STUB.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    assert all(hasattr(preproc_rs, name) for name in names) and "HAS_VIDEO" in names
