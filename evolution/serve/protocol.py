"""HTTP as uvicorn speaks it, with a limit on the length of a request's head, and errors of the one shape."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from evolution.serve.errors import error_response

MAX_HEAD_BYTES = 256 << 10  # and up to a read of the socket more; the parser itself takes heads of any length
LINGER = 1.0  # s
PHRASES = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class Protocol(HttpToolsProtocol):
    _refused = False
    _in_head = False
    _head_bytes = 0  # of reads that lie within the head

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        within = self._in_head
        super().data_received(data)
        if within and self._in_head and not self._refused:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, f"the request's headers are longer than {MAX_HEAD_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, f"{msg.rstrip('.')}: expected HTTP/1.1")

    def _refuse(self, status: int, message: str) -> None:
        """Answers, and closes the connection: what follows on it cannot be read. It is thrown away for a moment, since
        a client that still sends would be reset, and would not see the answer."""
        self._refused = True
        response = error_response(status, message, headers={"Connection": "close"})
        lines = [f"HTTP/1.1 {status} {PHRASES[status]}".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)
