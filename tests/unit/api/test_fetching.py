"""Recordings by address: what is fetched, and that no address leads into the cluster. The servers are real ones."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address

import httpcore2
import pytest

from cosyvoice_worker.api import fetching, public_network
from cosyvoice_worker.api.fetching import Fetcher, FetchError
from cosyvoice_worker.api.public_network import NotPublic, PublicNetwork, is_public, resolved
from tests.unit.api.test_speech import RECORDING, seconds

PUBLIC = "93.184.216.34"


class Site(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.headers["Host"], self.path))
        self.seen.append(dict(self.headers))
        kind, _, rest = self.path[1:].partition("/")
        if kind == "to":
            self.send_response(302)
            self.send_header("Location", rest.replace("!", "//"))
            self.end_headers()
        elif kind == "status":
            self.send_error(int(rest))
        elif kind == "large":
            self.send_response(200)
            if rest:
                self.send_header("Content-Length", rest)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                pass
        elif kind == "slow":
            self.send_response(200)
            self.end_headers()
            self.leave.wait(20)
        elif kind == "packed":
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
            self.end_headers()
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(RECORDING)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    handler = type("OneSite", (Site,), {"asked": [], "seen": [], "leave": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handler = handler
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    handler.leave.set()
    server.shutdown()
    server.server_close()


class Internet(httpcore2.AnyIOBackend):
    """Every address of it is that one server; what was dialled is written down."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port
        self.dialled: list[tuple[str, int]] = []

    async def connect_tcp(self, host, port, *more):
        self.dialled.append((host, port))
        return await super().connect_tcp("127.0.0.1", self.port, *more)


NAMES = {
    "public.example": [PUBLIC],
    "inside.example": ["10.0.0.7"],
    "both.example": [PUBLIC, "169.254.169.254"],
    "nowhere.example": [],
}


@pytest.fixture
def internet(site) -> Internet:
    return Internet(site.server_address[1])


@pytest.fixture
def fetch(internet):
    async def resolve(host: str, port: int) -> list[str]:
        return NAMES[host] if host in NAMES else list(await resolved(host, port))

    return lambda address, allowed="http": asyncio.run(
        Fetcher(allowed, PublicNetwork(internet, resolve)).fetch(address)
    )


def test_a_recording_is_fetched_from_the_address_that_was_checked_and_nothing_of_the_client_is_told(
    fetch, internet, site
):
    assert fetch("http://public.example/a.wav?signed=1,2") == RECORDING
    assert internet.dialled == [(PUBLIC, 80)]
    assert site.handler.asked == [("public.example", "/a.wav?signed=1,2")]
    assert {name.lower() for name in site.handler.seen[0]} == {"host", "user-agent", "accept", "accept-encoding"}


@pytest.mark.parametrize(
    "host",
    [
        *("inside.example", "both.example", "nowhere.example"),
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0", "localhost", "10.1.2.3", "192.168.0.1", "172.16.0.1"),
        *("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255"),
        *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "[fe80::1]", "[fd00:ec2::254]", "[ff02::1]"),
        *("[64:ff9b::a00:1]", "[2002:a00:1::]", "[2001:db8::1]", "[fec0::1]", "[::10.0.0.1]"),
    ],
)
def test_no_host_that_leads_elsewhere_than_the_internet_is_ever_dialled(fetch, internet, host):
    for address in (f"http://{host}/a.wav", f"http://public.example/to/http:!{host}/a.wav"):
        with pytest.raises(FetchError, match="its host has no address on the internet"):
            fetch(address)
    assert {address for address, _ in internet.dialled} == {PUBLIC}


def test_a_name_that_changes_its_mind_is_asked_once_and_not_again_when_connecting(internet):
    answers = iter([[PUBLIC], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> list[str]:
        return next(answers)

    fetcher = Fetcher("http", PublicNetwork(internet, rebinding))
    assert asyncio.run(fetcher.fetch("http://public.example/")) == RECORDING
    assert internet.dialled == [(PUBLIC, 80)]
    with pytest.raises(FetchError):
        asyncio.run(fetcher.fetch("http://public.example/"))
    assert internet.dialled == [(PUBLIC, 80)]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("ftp://public.example/", "only https and http is fetched"),
        ("file:///etc/passwd", "only https and http is fetched"),
        ("http:///a", "write a host"),
        ("http://user@public.example/", "without a user's name"),
        ("http://public.example:22/", "only port 80"),
        ("https://public.example:80/", "only port 443"),
        ("http://public.example:x/", "no address"),
        ("http://[::1/", "no address"),
        ("http://bücher.example/", "visible ASCII"),
        ("http://public.example/a b", "visible ASCII"),
        ("http://public.example/" + "a" * 2048, "at most 2048"),
        ("http://public.example/status/404", "status 404"),
        ("http://public.example/packed", "compressed"),
        ("http://public.example/large", "larger than 7340032 bytes"),
        ("http://public.example/large/99999999", "larger than 7340032 bytes"),
        ("http://public.example/to/file:!/etc/passwd", "only https and http is fetched"),
        ("http://public.example/to//to//to//to//to//x", "redirects more than 3 times"),
    ],
)
def test_what_is_not_fetched_says_why(fetch, address, words):
    with pytest.raises(FetchError, match=words):
        fetch(address)


def test_redirects_are_followed_a_few_times(fetch, site):
    assert fetch("http://public.example/to//to//a.wav") == RECORDING
    assert len(site.handler.asked) == 3


def test_where_only_https_is_allowed_neither_an_address_nor_a_redirect_is_http(fetch):
    with pytest.raises(FetchError, match="only https is fetched"):
        fetch("http://public.example/a.wav", allowed="https")


def test_tls_is_spoken_to_the_name_and_a_server_without_it_is_no_connection(fetch, internet):
    with pytest.raises(FetchError, match="no connection"):
        fetch("https://public.example/a.wav", allowed="https")
    assert internet.dialled == [(PUBLIC, 443)]


def test_the_whole_fetch_is_bounded_in_time(fetch, monkeypatch):
    monkeypatch.setattr(fetching, "SECONDS", 0.3)
    with pytest.raises(FetchError, match="takes longer"):
        fetch("http://public.example/slow")


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1111", "8.8.8.8", "64:ff9b::808:808"])
def test_addresses_on_the_internet_are_public(address):
    assert is_public(ip_address(address))


async def test_there_is_no_way_to_a_unix_socket():
    with pytest.raises(NotPublic):
        await PublicNetwork().connect_unix_socket("/run/any.sock")


def test_a_worker_that_allows_it_speaks_in_the_voice_of_an_address(server, internet, monkeypatch):
    async def resolve(host: str, port: int) -> list[str]:
        return NAMES[host]

    monkeypatch.setattr(public_network, "_CONNECT_SECONDS", 5.0)
    fetcher = Fetcher("http", PublicNetwork(internet, resolve))
    monkeypatch.setitem(server.server.config.app.state._state, "fetcher", fetcher)  # setattr would delete it afterwards
    spoken = server.speak(ref_audio="http://public.example/a.wav", response_format="wav")
    assert spoken.status_code == 200
    assert seconds(spoken.content) > 0.2
    refused = server.speak(ref_audio=" HTTP://inside.example/a.wav?signature=secret")
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("ref_audio", "not_fetched")
    assert "secret" not in error["message"]
