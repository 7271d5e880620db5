"""The hostile pages: a template, the server's answers, and endpoints that never answer.

Invariants:

* a page has two buttons, `Trouble` on the left and `Done` on the right; `Done` ends the episode
  with reward 1 when the page's own condition holds, so an episode that survives can be told from
  one that does not;
* nothing here reaches beyond the task server, and no answer depends on the time.
"""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from webrl.tasks.fault_pages import FAULT_PAGES

PREFIX = "/fault/"
"""Where the pages live on the task server."""

_TEMPLATE = """<!doctype html>
<html><head><meta charset="utf-8"><title>%(name)s</title><style>
html,body{margin:0;background:#fff;font:12px Arial}
#trouble,#done{position:fixed;top:0;width:160px;height:120px}
#trouble{left:0}#done{left:160px}
#rest{position:fixed;top:130px;left:0;width:320px;height:100px;overflow:hidden}
a#trouble{background:#eee;display:block;text-align:center;line-height:120px}
</style>%(head)s</head><body>
%(trouble)s<button id="done">Done</button><div id="rest">%(body)s</div>
<script>
window.state = {done: false, reward: 0, reason: null};
window.holds = () => true;
document.getElementById('done').addEventListener('click', () => {
  window.state = {done: true, reward: holds() ? 1 : 0, reason: 'done'};
});
%(script)s
</script></body></html>"""
_BUTTON = '<button id="trouble">Trouble</button>'
_SECOND = "<!doctype html><title>second</title><style>body{background:#cfc}</style>second page"
_PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"

STATE_SCRIPT = "window.state || {done: false, reward: 0, reason: null}"
"""A page between two documents has no state yet."""


def page_html(name: str) -> str | None:
    """Return the page `name`, or `None` when there is none."""
    page = FAULT_PAGES.get(name)
    if page is None:
        return None
    return _TEMPLATE % {
        "name": name,
        "head": page.head,
        "trouble": page.trouble or _BUTTON,
        "body": page.body,
        "script": page.script,
    }


async def answer_fault(request: web.BaseRequest) -> web.StreamResponse:
    """Answer a request below `/fault/`."""
    name = request.path.removeprefix(PREFIX)
    html = page_html(name.removesuffix(".html"))
    if html is not None:
        return web.Response(text=html, content_type="text/html")
    if name == "never":
        await asyncio.Event().wait()  # until the client goes away
    if name == "stream":
        return await _stream(request)
    return _fixed(name, request)


def _fixed(name: str, request: web.BaseRequest) -> web.StreamResponse:
    """Return the answer of an endpoint without a page."""
    if name == "second.html":
        return web.Response(text=_SECOND, content_type="text/html")
    if name in ("loop", "loop-back"):
        other = "loop-back" if name == "loop" else "loop"
        return web.Response(status=302, headers={"Location": PREFIX + other})
    if name == "file.bin":
        disposition = {"Content-Disposition": 'attachment; filename="file.bin"'}
        return web.Response(body=b"x" * 1000, headers=disposition)
    if name == "file.pdf":
        return web.Response(body=_PDF, content_type="application/pdf")
    if name == "cut":
        return _cut(request)
    status = {"no-content": 204, "wall": 403, "down": 503, "auth": 401}.get(name, 404)
    headers = {"WWW-Authenticate": 'Basic realm="fault"'} if status == 401 else {}
    text = "<title>Just a moment...</title>Checking your browser" if name == "wall" else name
    body = None if status == 204 else text
    return web.Response(status=status, text=body, content_type="text/html", headers=headers)


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """End the connection in the middle of nothing."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


async def _stream(request: web.BaseRequest) -> web.StreamResponse:
    """Send one server-sent event and keep the stream open."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b"data: " + json.dumps({"first": True}).encode() + b"\n\n")
    await asyncio.Event().wait()
    return response
