"""A web server in a background thread."""

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from informin.errors import UsageError, error_line

LOCAL = "127.0.0.1"
FIRST, PORTS = 7860, 100  # the first port that is tried, and the number of ports; as Gradio
STARTED = 60  # seconds


def address_of(host: str | None) -> str:
    """Return the address to listen on; by default the one in GRADIO_SERVER_NAME, which Spaces set."""
    return (host or os.environ.get("GRADIO_SERVER_NAME") or LOCAL).strip("[]")


def listen(host: str, port: int | None = None) -> socket.socket:
    """Return a listening socket.

    Args:
        host: Address.
        port: Port; None for GRADIO_SERVER_PORT, or the first free one from 7860.

    Raises:
        UsageError: The address or the port cannot be used.
    """
    first = os.environ.get("GRADIO_SERVER_PORT", "")
    begin = int(first) if first.isdecimal() else FIRST
    _listening(host, 0, "host", host).close()
    for number in range(begin, begin + PORTS) if port is None else ():
        with suppress(OSError, OverflowError):
            return _socket(host, number)
    last = begin if port is None else port
    return _listening(host, last, "port", last)


def _listening(host: str, port: int, option: str, value: object) -> socket.socket:
    """Return a listening socket, or raise UsageError about an option."""
    try:
        return _socket(host, port)
    except (OSError, OverflowError, UnicodeError) as error:
        found = f"is {value}, where no server can listen: {error_line(error)}"
        raise UsageError(found, option=option, fix=f"Choose another {option}.") from None


def _socket(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)


def start(app: Any, listener: socket.socket) -> str:
    """Serve an ASGI app in the background and return its URL.

    Raises:
        UsageError: The app does not start.
    """
    import uvicorn  # comes with gradio

    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + STARTED
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise UsageError("The search page does not start", fix="Update gradio and uvicorn.")
        time.sleep(0.01)
    return url_of(listener)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket. A server on all addresses is reached as localhost."""
    host, port = listener.getsockname()[:2]
    name = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"


def wait() -> None:
    """Keep the server running until a signal."""
    threading.Event().wait()
