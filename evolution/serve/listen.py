"""The one TCP port: taken before anything is started, so that two servers never start for one port."""

from __future__ import annotations

import errno
import socket

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free one. ValueError of one line if there can be none.

    Clients that connect before the server runs wait; they are not refused.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"--port must be a number from 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a name of a host"
        raise ValueError(f"--host {host!r}: {reason}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        # A port whose last connections are still being closed may be taken at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        way_out = "choose another port, or --port 0" if error.errno != errno.EADDRNOTAVAIL else "no such address here"
        raise ValueError(f"--host {host} --port {port}: {error.strerror}; {way_out}") from None
    return listener


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    host = listener.getsockname()[0]
    return host == "::1" or host.startswith("127.")
