"""The port, before anything is started."""

from __future__ import annotations

import socket

import pytest

from evolution.serve.listen import is_loopback, listen, url


def test_a_free_port_and_its_address() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert is_loopback(listener)
    with listen("0.0.0.0", 0) as listener:
        assert not is_loopback(listener)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6() -> None:
    try:
        listener = listen("::1", 0)
    except ValueError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
        assert is_loopback(listener)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", -1, "--port must be"),
        ("127.0.0.1", 65536, "--port must be"),
        ("no.such.host.invalid", 0, "--host 'no.such.host.invalid': "),
        ("x" * 300, 0, "--host"),
        ("203.0.113.1", 0, "--host 203.0.113.1 --port 0: Cannot assign"),
    ],
)
def test_what_cannot_be_listened_on(host: str, port: int, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        listen(host, port)
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port}: Address already in use"):
            listen("127.0.0.1", port)
    listen("127.0.0.1", port).close()  # at once
