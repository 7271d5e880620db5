"""The hostile pages as data: what each one does when its `Trouble` button is clicked.

Invariant: a page does one thing. All of them are reductions of what real sites do, or did to
somebody's agent.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class FaultPage(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one page."""

    script: str = ""
    """Runs when the page has loaded; `onTrouble(f)` hooks the button."""
    body: str = ""
    """Below the buttons."""
    head: str = ""
    """In the head."""
    trouble: str = ""
    """In place of the button, such as a link with `id="trouble"`."""


def _on_click(code: str, *, holds: str = "") -> FaultPage:
    """Return a page that runs `code` on a click; `Done` counts only when `holds` is true."""
    script = f"document.getElementById('trouble').addEventListener('click', () => {{ {code} }});"
    if holds:
        script += f"window.holds = () => {holds};"
    return FaultPage(script=script)


def _link(address: str, attributes: str = "") -> FaultPage:
    """Return a page whose `Trouble` is a link."""
    return FaultPage(trouble=f'<a id="trouble" href="{address}" {attributes}>Trouble</a>')


FAULT_PAGES: Mapping[str, FaultPage] = {
    "plain": FaultPage(),
    # Dialogs.
    "alert": _on_click("alert('hello')"),
    "confirm": _on_click("window.yes = confirm('sure?')", holds="window.yes === true"),
    "prompt": _on_click(
        "window.said = prompt('name?', 'nobody')", holds="window.said === 'nobody'"
    ),
    "alert-later": _on_click("setTimeout(() => alert('later'), 30)"),
    "alert-long": _on_click("alert('x'.repeat(1000000))"),
    "alert-storm": _on_click("for (;;) alert('again')"),
    "beforeunload": FaultPage(
        trouble='<a id="trouble" href="second.html">Trouble</a>',
        script="addEventListener('beforeunload', (e) => { e.preventDefault(); e.returnValue = 'x'; });",
    ),
    "print": _on_click("window.print()"),
    # Pages that do not end, or end too early.
    "busy": _on_click("for (;;);"),
    "busy-worker": _on_click(
        "new Worker(URL.createObjectURL(new Blob(['for (;;);'], {type: 'text/javascript'})))"
    ),
    "self-reload": FaultPage(script="setTimeout(() => location.reload(), 50);"),
    "bounce": FaultPage(script="setTimeout(() => location.replace('bounce-back.html'), 20);"),
    "bounce-back": FaultPage(script="setTimeout(() => location.replace('bounce.html'), 20);"),
    "window-close": _on_click("window.close()"),
    "oom": _on_click(
        "const all = []; for (let i = 0;; i++) all.push(new Array(1e5).fill(i + 0.5))"
    ),
    "debugger": _on_click("debugger; window.after = true", holds="window.after === true"),
    "throw": _on_click("throw new Error('from the page')"),
    # Things that never arrive.
    "image-never": FaultPage(body='<img src="never">'),
    "font-never": FaultPage(
        head="<style>@font-face{font-family:F;src:url(never)}#rest{font-family:F}</style>",
        body="text in a font that never arrives",
    ),
    "script-never": FaultPage(body='<script async src="never"></script>'),
    "stream": FaultPage(script="window.source = new EventSource('stream');"),
    "link-never": _link("never"),
    "long-poll": _on_click("fetch('never')"),
    # Storms.
    "fetch-storm": _on_click("for (let i = 0; i < 200; i++) fetch('no-content?' + i)"),
    "socket-storm": _on_click(
        "for (let i = 0; i < 100; i++) new WebSocket('ws://' + location.host + '/fault/cut')"
    ),
    "console-storm": _on_click("for (let i = 0; i < 2000; i++) console.log('line ' + i)"),
    "history-storm": _on_click("for (let i = 0; i < 150; i++) history.pushState({}, '', '#' + i)"),
    "big-dom": _on_click(
        "const r = document.getElementById('rest'); let s = '';"
        "for (let i = 0; i < 10000; i++) s += '<i>x</i>'; r.innerHTML = s;"
    ),
    "frames": _on_click(
        "const r = document.getElementById('rest');"
        "for (let i = 0; i < 40; i++) { const f = document.createElement('iframe');"
        " f.src = 'second.html'; r.appendChild(f); }"
        "setInterval(() => r.firstChild && r.firstChild.remove(), 10);"
    ),
    # More windows.
    "popup-storm": _on_click("for (let i = 0; i < 12; i++) window.open('second.html?' + i)"),
    "popup-blank": _on_click("window.open('about:blank')"),
    "popup-closes": _on_click("const w = open('second.html'); setTimeout(() => w.close(), 50)"),
    "popup-never": _on_click("window.open('never')"),
    "new-tab-never": _link("never", 'target="_blank"'),
    "new-tab": _link("second.html", 'target="_blank"'),
    "new-tab-noopener": _link("second.html", 'target="_blank" rel="noopener"'),
    # Files.
    "download": _link("file.bin"),
    "download-tab": _link("file.bin", 'target="_blank"'),
    "pdf-tab": _link("file.pdf", 'target="_blank"'),
    "file-chooser": FaultPage(
        trouble='<input id="trouble" type="file" style="background:#eee">',
    ),
    "local-file": _link("file:///etc/hostname"),
    # Native widgets and permissions.
    "select": FaultPage(
        trouble='<select id="trouble"><option>one<option>two<option>three</select>',
        script=(
            "document.getElementById('trouble').style.height = '20px';"
            "window.holds = () => document.getElementById('trouble').value === 'two';"
        ),
    ),
    "date": FaultPage(trouble='<input id="trouble" type="date" style="background:#eee">'),
    "fullscreen": _on_click("document.documentElement.requestFullscreen()"),
    "geolocation": _on_click(
        "navigator.geolocation.getCurrentPosition(() => {}, () => { window.denied = true; })"
    ),
    "notification": _on_click(
        "Notification.requestPermission().then((p) => { window.answer = p; })",
        holds="window.answer !== 'granted'",
    ),
    "mailto": _on_click("location.href = 'mailto:somebody@example.org'"),
    "draggable": FaultPage(
        body='<div draggable="true" style="width:100px;height:60px;background:#aaf">drag me</div>'
    ),
    # Addresses.
    "link-no-content": _link("no-content"),
    "link-auth": _link("auth"),
    "link-cut": _link("cut"),
    "link-loop": _link("loop"),
    "link-private": _link("http://10.0.0.1/"),
    "link-unknown-host": _link("http://no-such-host.invalid/"),
    "link-unsafe-port": _link("http://example.invalid:1/"),
    # What must not survive an episode.
    "storage": FaultPage(
        script=(
            "const n = Number(localStorage.getItem('n') || 0) + 1; localStorage.setItem('n', n);"
            "const c = (document.cookie.match(/c=(\\d+)/) || [0, 0])[1] * 1 + 1;"
            "document.cookie = 'c=' + c; window.holds = () => n === 1 && c === 1;"
        )
    ),
    "service-worker": FaultPage(
        script=(
            "if (navigator.serviceWorker) navigator.serviceWorker.register('second.html')"
            ".then(() => navigator.serviceWorker.getRegistrations())"
            ".then((all) => { window.workers = all.length; }, () => {});"
            "window.holds = () => !window.workers;"
        )
    ),
}
"""Pages by name."""
