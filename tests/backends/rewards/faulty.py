"""A reward server that does to its clients what servers do: one fault a path."""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Faulty:
    """The address of a running server and the requests that it got, as (path, parsed body)."""

    url: str
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def count(self, path: str) -> int:
        return sum(asked == path for asked, _ in self.asked)


def lengths(body: dict[str, Any]) -> list[float]:
    """The right reward: how long each answer is."""
    return [float(len(q) - len(p)) for q, p in zip(body["query"], body["prompts"], strict=True)]


def reply(handler: Any, status: int, content: Any) -> None:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text)


def close(handler: Any, _: dict) -> None:
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def half(handler: Any, body: dict) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"rewards": [1.0')
    close(handler, body)


def trickle(handler: Any, _: dict) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.faulty.ended.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def hang(handler: Any, _: dict) -> None:
    handler.server.faulty.ended.wait()


def flaky(handler: Any, body: dict) -> None:
    good = handler.server.faulty.count(handler.path) > 2
    reply(handler, 200 if good else 503, {"rewards": lengths(body)} if good else {"busy": True})


def slow(handler: Any, body: dict) -> None:
    time.sleep(0.05)
    reply(handler, 200, {"rewards": lengths(body)})


def ok(handler: Any, body: dict) -> None:
    logs = {"accuracy": 0.5, "length": lengths(body)}
    reply(handler, 200, {"rewards": lengths(body), "scores": [0.0] * len(body["query"])}
          | {"extra_logs": logs})  # fmt: skip


def saying(status: int, made: Callable[[dict], Any]) -> Callable[[Any, dict], None]:
    return lambda handler, body: reply(handler, status, made(body))


PATHS: dict[str, Callable[[Any, dict], None]] = {
    "/get_reward": ok,
    "/slow": slow,
    "/flaky": flaky,
    "/close": close,
    "/half": half,
    "/hang": hang,
    "/trickle": trickle,
    "/500": saying(500, lambda _: {"error": "out of memory"}),
    "/400": saying(400, lambda _: {"error": "no such field"}),
    "/401": saying(401, lambda _: {"error": "who are you"}),
    "/302": saying(302, lambda _: {}),
    "/short": saying(200, lambda body: {"rewards": lengths(body)[:-1]}),
    "/long": saying(200, lambda body: {"rewards": [*lengths(body), 1.0]}),
    "/scalar": saying(200, lambda _: {"rewards": 1.0}),
    "/nested": saying(200, lambda body: {"rewards": [[r] for r in lengths(body)]}),
    "/text": saying(200, lambda body: {"rewards": ["inf", *lengths(body)[1:]]}),
    "/nan": saying(200, lambda body: {"rewards": [math.nan, *lengths(body)[1:]]}),
    "/huge": saying(200, lambda body: {"rewards": [math.inf, *lengths(body)[1:]]}),
    "/null": saying(200, lambda body: {"rewards": [None, *lengths(body)[1:]]}),
    "/none": saying(200, lambda _: {}),
    "/list": saying(200, lambda _: [1.0]),
    "/html": saying(200, lambda _: b"<html>hello</html>"),
    "/deep": saying(200, lambda _: b"[" * 100_000),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        self.server.faulty.asked.append((self.path, body))
        self.server.faulty.headers.append(dict(self.headers))
        try:
            PATHS[self.path](self, body)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def faulty_server() -> Iterator[Faulty]:
    """A server on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.faulty = Faulty(url=f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.faulty
    finally:
        server.faulty.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
