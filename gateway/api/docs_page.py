"""GET /docs: the OpenAPI document as one page that needs nothing from elsewhere, no script and no network."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter()
STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code,pre{font:13px/1.4 ui-monospace,monospace}pre{overflow:auto;padding:.8rem;border:1px solid #8886}"
    "summary{cursor:pointer;padding:.3rem 0}table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;"
    "vertical-align:top}b{display:inline-block;min-width:4.5rem}"
)
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    document = request.app.openapi()
    return Response(page(document), media_type="text/html", headers={"content-security-policy": POLICY})


def page(document: Mapping[str, Any]) -> str:
    title = f"{document['info']['title']} {document['info']['version']}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>',
        f'<h1>{escape(title)}</h1><p>Machine-readable: <a href="openapi.json">openapi.json</a>.</p>',
        *_operations(document["paths"]),
        "<h2>Schemas</h2>",
        *_schemas(document.get("components", {}).get("schemas", {})),
    ]
    return "\n".join(parts)


def _operations(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            head = f"<b>{escape(method.upper())}</b> <code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
            body = _body(operation.get("requestBody", {}))
            rows = "".join(
                f"<tr><td>{escape(status)}</td><td>{escape(answer.get('description', ''))}</td></tr>"
                for status, answer in operation.get("responses", {}).items()
            )
            yield f"<details><summary>{head}</summary>{body}<table>{rows}</table></details>"


def _body(body: Mapping[str, Any]) -> str:
    out = ""
    for kind, content in body.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        link = f'<a href="#{escape(name)}">{escape(name)}</a>' if name else "any"
        out += f"<p>Body: <code>{escape(kind)}</code>, {link}</p>"
    return out


def _schemas(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in schemas.items():
        text = escape(json.dumps(schema, indent=2, ensure_ascii=False))
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{text}</pre>'
