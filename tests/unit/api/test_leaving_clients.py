"""A client that leaves, or stops reading, takes no more of the worker's time."""

import json
import socket
import time

from tests.unit.api.conftest import Running, eventually, start
from tests.unit.api.double import SpeechDouble


def ask(server: Running, receive_buffer: int | None = None, **body: object) -> socket.socket:
    payload = json.dumps({"input": "hello", "response_format": "pcm", **body}).encode()
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", server.server.port))
    sock.sendall(
        b"POST /v1/audio/speech HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(payload)}\r\n\r\n".encode()
        + payload
    )
    return sock


def test_leaving_while_audio_streams_cancels_it_within_100_ms(server, service):
    service.pieces, service.pause = 1000, 0.05
    before = server.outcomes("cancelled")
    with ask(server) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 OK")
    left = time.monotonic()
    eventually(lambda: service.cancelled_at)
    assert service.cancelled_at[0] - left < 0.1
    eventually(lambda: server.outcomes("cancelled") == before + 1)


def test_leaving_before_the_first_audio_cancels_it_within_100_ms(server, service):
    service.pause = 30
    with ask(server):
        eventually(lambda: service.running)
    left = time.monotonic()
    eventually(lambda: service.cancelled_at)
    assert service.cancelled_at[0] - left < 0.1


def test_a_client_that_reads_nothing_is_cut_after_the_stall_time():
    service = SpeechDouble(pieces=300, piece_seconds=1.0)
    server = start(service, write_stall_seconds=0.3).wait_ready()
    try:
        with ask(server, receive_buffer=4096):
            eventually(lambda: server.outcomes("cancelled") == 1)
    finally:
        server.end()
