"""Refuse requests that the search page does not make, before Gradio sees them.

Gradio also serves uploads, files, proxies and streams, which the page has no use for. `Guard` is ASGI middleware with
four checks: the host name, the origin, the route, and the size and shape of a body. It also sets the headers that
forbid the page to load anything from other hosts.
"""

import re
from typing import Any

from informin.demo.hosts import Hosts, host_name
from informin.files import parse_json

LARGEST = 2**20  # bytes of a body: more than the longest query
DISCARDED = 2**26  # bytes of a larger body that are received, one part at a time, before the connection is closed
PAGES = ("/", "/config", "/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css")
FOLDERS = ("/assets/", "/static/", "/svelte/")  # of files that come with Gradio
READ = ("/gradio_api/info", "/gradio_api/app_id", "/gradio_api/queue/data", "/gradio_api/theme.css")
SESSION = re.compile(r"/gradio_api/heartbeat/\w{1,64}")
SENT = ("/gradio_api/queue/join", "/gradio_api/cancel")
SAFE_NAME = re.compile(r"[\w@.,+~()\[\]/-]+")  # of a file that comes with Gradio
# What Gradio's page needs. It compiles its templates, so scripts of the page itself may use eval.
OWN = "'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
POLICY = (
    f"default-src {OWN}; connect-src 'self'; frame-src 'none'; object-src 'none'; form-action 'none'; base-uri 'self'"
)
Scope = dict[str, Any]


class Guard:
    """Passes on only what the page needs.

    Args:
        app: The ASGI app of the page.
        hosts: Host names that are served; None for all, as in a Space, where the Hub's proxy chooses the name.
    """

    def __init__(self, app, hosts: Hosts | None):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send, framed=self.hosts is None))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive, send) -> None:
        refusal = refused_host(scope, self.hosts) or refused_route(scope)
        if refusal:
            await _discard(receive)
        elif scope["method"] == "POST":
            body = await _read(receive)
            refusal = refused_body(body)
            receive = _replayed(body or b"", receive)
        await (_answer(send, *refusal) if refusal else self.app(scope, receive, send))


def refused_host(scope: Scope, hosts: Hosts | None) -> tuple[int, str] | None:
    """Return status and message for a request under another host name, or from another website."""
    if hosts is None:
        return None
    found, origins = _headers(scope, b"host"), _headers(scope, b"origin")
    name = host_name(found[0]) if len(found) == 1 else None
    if name is None or name not in hosts:
        shown = f"the host name {name!r:.100}" if name else "a request without one valid host name"
        advice = (
            f" To allow it, start the page with the option `allowed_hosts` {name}."
            if name and name.isprintable()
            else ""
        )
        return 421, f"This page is not served for {shown}.{advice}"
    for origin in origins:
        scheme, _, netloc = origin.partition("://")
        same = scheme in ("http", "https") and (netloc.lower() == found[0].lower() or host_name(netloc) in hosts.extra)
        if not same:
            return 403, f"This page takes no requests from {origin!r:.100}."
    return None


def refused_route(scope: Scope) -> tuple[int, str] | None:
    """Return status and message for a path or a method that the page does not use."""
    path, method = scope["path"], scope["method"]
    if method in ("GET", "HEAD"):
        file = path.startswith(FOLDERS) and SAFE_NAME.fullmatch(path) and not {"", "..", "."} & {*path[1:].split("/")}
        known = path in (*PAGES, *READ) or SESSION.fullmatch(path) or file
    else:
        known = method == "POST" and path in SENT
    return None if known else (404, "The search page has nothing here.")


def refused_body(body: bytes | None) -> tuple[int, str] | None:
    """Return status and message for a body that is not a flat JSON object.

    A value of a nested kind could name a file or an address that Gradio would copy.

    Args:
        body: The body; None if it is too large.
    """
    if body is None:
        return 413, f"A request may have up to {LARGEST:,} bytes."
    try:
        values = parse_json(body.decode())
    except ValueError as error:
        return 400, f"The body is not JSON: {type(error).__name__}."
    if isinstance(values, dict) and all(_flat(name, value) for name, value in values.items()):
        return None
    return 422, "The body must be a JSON object with one text in `data`."


def _flat(name: str, value: object) -> bool:
    if name == "data" and isinstance(value, list):
        return len(value) <= 1 and all(item is None or isinstance(item, str) for item in value)
    return not isinstance(value, list | dict)


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def _read(receive) -> bytes | None:
    """Return the body of a request; None, and nothing in memory, if it is larger than the limit."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)  # also false once the client is gone
        if len(body) > LARGEST:
            await _discard(receive, more)
            return None
    return body


async def _discard(receive, more: bool = True) -> None:
    """Receive the rest of a body, because many clients read no answer before they have sent all of it."""
    size = 0
    while more and size < DISCARDED:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)


def _replayed(body: bytes, receive):
    """Return a `receive` that gives a body which was read already, then what follows."""
    sent = False

    async def again():
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send, framed: bool):
    """Return a `send` that adds the headers of the guard.

    Args:
        framed: Whether another website may show the page in a frame, as huggingface.co does with a Space.
    """
    policy = POLICY if framed else f"{POLICY}; frame-ancestors 'self'"
    own = [(b"content-security-policy", policy), (b"x-content-type-options", "nosniff")]
    own.append((b"referrer-policy", "no-referrer"))

    async def with_headers(message):
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *((name, value.encode()) for name, value in own)]
        await send(message)

    return with_headers


async def _answer(send, status: int, text: str) -> None:
    """Send a refusal in plain text."""
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
