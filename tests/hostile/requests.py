"""What hostile, broken and confused programs send to the grid's port, each with the answers that it must get.

`[]` is a connection that is closed without an answer. Statuses stand in the order of the requests on one connection.
"""

from dataclasses import dataclass
from typing import Final

from tests.support.raw import head

KIB: Final = 1024
KEY: Final = "MDEyMzQ1Njc4OWFiY2RlZg=="
EVIL: Final = "evil.example"


@dataclass(frozen=True)
class Row:
    """`sent` goes out in these pieces, each as a segment of its own; `pause_s` lies between two of them."""

    name: str
    sent: tuple[bytes, ...]
    answers: list[int]
    pause_s: float = 0.0


def request(
    target: str = "/health", method: str = "GET", version: str = "HTTP/1.1", body: str = "", **headers: str | None
) -> bytes:
    """A request of the API that wants no second one; a header changed to None is left out."""
    given: dict[str, str | None] = {"Host": "localhost", "Connection": "close"}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {target} {version}", *lines, "", body]).encode("latin-1")


def kept(target: str = "/health") -> bytes:
    """One that others follow on the same connection."""
    return request(target, Connection=None)


def with_lines(first: bytes, *lines: bytes) -> bytes:
    """More header lines, as they are."""
    return first[:-2] + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def raw(text: str) -> bytes:
    """Lines of a test for the wire."""
    return text.replace("\n", "\r\n").encode("latin-1")


PLAIN: Final = raw("GET /health HTTP/1.1\nHost: localhost\nConnection: close\n")
POST: Final = raw("POST /v1/workers/a/drain HTTP/1.1\nHost: localhost\nConnection: close\n")
"""A head without its end."""


def first_bytes() -> list[Row]:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256))
    said = {
        "TLS": hello,
        "TLS, three bytes": hello[:3] + b"\r\n\r\n",
        "TLS after a line end": b"\r\n" + hello,
        "SSLv2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"\x00" * 40,
        "HTTP/2 with prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        "frames of HTTP/2": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18,
        "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
        "SMTP": b"EHLO evil.example\r\n",
        "Redis": b"*1\r\n$4\r\nPING\r\n",
        "Redis, inline": b"PING\r\nCONFIG GET *\r\n",
        "SOCKS5": b"\x05\x01\x00\x05\x01\x00\x03\x0bevil.example\x01\xbb",
        "RDP": b"\x03\x00\x00\x13\x0e\xe0\x00\x00\x00\x00\x00\x01\x00\x08\x00\x03\x00\x00\x00",
        "PROXY protocol": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + head(),
        "PROXY protocol 2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + b"\x7f" * 12 + head(),
        "NULs": b"\0" * 64,
        "a NUL before a request": b"\0" + request(),
        "255s": b"\xff" * 64,
        "garbage behind empty lines": b"\r\n\r\nGARBAGE\0\0\0\r\n\r\n",
        "a WebSocket frame": b"\x81\x85\x00\x00\x00\x00hello",
        "a text": b"hello, is there anybody?\r\n\r\n",
    }
    return [Row(f"first bytes: {name}", (sent,), [400]) for name, sent in said.items()]


def request_lines() -> list[Row]:
    lines = {
        "HTTP/0.9": (b"GET /health\r\n", [408]),
        "without a version": (b"GET /health\r\nHost: localhost\r\n\r\n", [400]),
        "HTTP/1.2": (request(version="HTTP/1.2"), [400]),
        "HTTP/2.0": (request(version="HTTP/2.0"), [400]),
        "HTTP/9.9": (request(version="HTTP/9.9"), [400]),
        "HTTP/1.1.1": (request(version="HTTP/1.1.1"), [400]),
        "HTTP/11": (request(version="HTTP/11"), [400]),
        "http/1.1": (request(version="http/1.1"), [400]),
        "HTTPS/1.1": (request(version="HTTPS/1.1"), [400]),
        "ICE/1.0": (request(version="ICE/1.0"), [400]),
        "HTTP/1.0": (request(version="HTTP/1.0"), [200]),
        "HTTP/1.0 without a Host": (request(version="HTTP/1.0", Host=None), [200]),
        "a method in lower case": (request(method="get"), [400]),
        "a method that is none": (request(method="FOO"), [400]),
        "a method of 10 KiB": (request(method="G" * 10 * KIB), [400]),
        "a NUL in the method": (request(method="GE\0T"), [400]),
        "a space before the method": (b" " + request(), [400]),
        "empty lines before the request": (b"\r\n\r\n" + request(), [200]),
        "two spaces": (request("/health "), [200]),
        "a tab": (request().replace(b" /health ", b"\t/health\t"), [400]),
        "no target": (request(""), [400]),
        "a NUL in the target": (request("/health\0"), [400]),
        "a bell in the target": (request("/hea\x07lth"), [400]),
        "a line end in the target": (request("/hea\rlth"), [400]),
        "a space in the target": (request("/hea lth"), [400]),
        "bytes above 127 in the target": (request("/h\xe4lth"), [400]),
        "a fragment": (request("/health#fragment"), [200]),
        "an encoded NUL": (request("/health%00"), [404]),
        "an encoded line end": (request("/%0d%0aSet-Cookie:a=b"), [404]),
        "broken UTF-8, encoded": (request("/%ff%fe"), [404]),
        "a broken escape": (request("/%zz%"), [404]),
        "dots": (request("/../../etc/passwd"), [404]),
        "encoded dots": (request("/%2e%2e/%2e%2e/etc/passwd"), [404]),
        "two slashes": (request("//health"), [404]),
        "backslashes": (request("/\\..\\health"), [404]),
        "a bad query": (request("/v1/sessions?limit=99999999999999999999"), [400]),
        "a query of broken UTF-8": (request("/v1/sessions?status=%ff%fe"), [400]),
        "a cursor that is none": (request("/v1/sessions?cursor=%00%00"), [400]),
        "a session that is none": (request("/v1/sessions/%2a%0d%0a"), [404]),
        "a thousand queries": (request("/health?" + "a=b&" * 1000), [200]),
        "the whole of a head, nearly": (request("/" + "a" * 32_000), [404]),
        "absolute": (request(f"http://{EVIL}/health"), [200]),
        "absolute, without a path": (request(f"http://{EVIL}"), [400]),
        "absolute, a user": (request(f"http://a:b@{EVIL}/health"), [200]),
        "absolute, another scheme": (request("file:///etc/passwd"), [400]),
        "only an asterisk": (request("*", method="OPTIONS"), [204]),
        "only an asterisk, GET": (request("*"), [404]),
        "HAProxy's check": (request("/", method="OPTIONS", version="HTTP/1.0", Host=None), [204]),
        "HAProxy's check of another name": (request("/", method="OPTIONS", Host=EVIL), [403]),
        "HEAD of the root": (request("/", method="HEAD"), [426]),
        "HEAD where GET is meant": (request(method="HEAD"), [200]),
        "OPTIONS where GET is meant": (request(method="OPTIONS"), [204]),
        "a slash at the end": (request("/health/"), [200]),
        "a slash at the end, another name": (request("/metrics/?token=s3cret", Host=EVIL), [403]),
        "an unknown path, another name": (request("/none", Host=EVIL), [403]),
        "another method, another name": (request(method="PUT", Host=EVIL), [403]),
        "an authority": (request(f"{EVIL}:443", method="CONNECT"), [400]),
        "CONNECT with a path": (request(method="CONNECT"), [405]),
    }
    methods = {
        f"{method} where GET is meant": (request(method=method), [405])
        for method in ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "PURGE")
    }
    return [Row(f"request line: {name}", (sent,), answers) for name, (sent, answers) in (lines | methods).items()]


def header_lines() -> list[Row]:
    good = request()
    lines = {
        "without a colon": (with_lines(good, b"Nothing"), [400]),
        "a space before the colon": (with_lines(good, b"A : b"), [400]),
        "an empty name": (with_lines(good, b": b"), [400]),
        "a space in the name": (with_lines(good, b"A b: c"), [400]),
        "a NUL in the name": (with_lines(good, b"A\0b: c"), [400]),
        "a NUL in the value": (with_lines(good, b"A: b\0c"), [400]),
        "an escape in the value": (with_lines(good, b"A: b\x1b[2J"), [400]),
        "DEL in the value": (with_lines(good, b"A: b\x7f"), [400]),
        "DEL in the value, guarded": (with_lines(request("/v1/status"), b"A: b\x7f"), [400]),
        "bytes above 127 in the value": (with_lines(good, b"A: \xff\xfe"), [200]),
        "bytes above 127 in the value, guarded": (with_lines(request("/v1/status"), b"A: \xff\xfe"), [200]),
        "bytes above 127 in the name": (with_lines(good, b"\xc3\xa4: b"), [400]),
        "folded": (with_lines(good, b"A: b\r\n c"), [400]),
        "folded first": (PLAIN.replace(b"\r\nHost", b"\r\n Host") + b"\r\n", [400]),
        "a CR alone": (with_lines(good, b"A: b\rC: d"), [400]),
        "LFs only": (good.replace(b"\r\n", b"\n"), [400]),
        "LF at the end only": (good[:-2] + b"\n", [400]),
        "CR CR LF": (good.replace(b"\r\n", b"\r\r\n"), [400]),
        "a thousand": (with_lines(good, *[b"A%d: b" % i for i in range(1000)]), [200]),
        "one of 31 KiB": (with_lines(good, b"A: " + b"b" * 31 * KIB), [200]),
        "one of 33 KiB": (with_lines(good, b"A: " + b"b" * 33 * KIB), [431]),
        "one of 1 MiB": (with_lines(good, b"A: " + b"b" * KIB * KIB), [431]),
        "a name of 33 KiB": (with_lines(good, b"a" * 33 * KIB + b": b"), [431]),
        "40 KiB in small ones": (with_lines(good, *[b"A: " + b"b" * 97] * 400), [431]),
        "a target of 33 KiB": (request("/" + "a" * 33 * KIB), [431]),
        "an upgrade with one of 33 KiB": (head(A="b" * 33 * KIB), [431]),
        "an upgrade with 200": (with_lines(head(), *[b"A%d: b" % i for i in range(200)]), [101]),
        "an upgrade with one of 9 KiB": (head(A="b" * 9 * KIB), [101]),
        "an upgrade, folded": (with_lines(head(), b"A: b\r\n c"), [400]),
        "an upgrade, LFs only": (head().replace(b"\r\n", b"\n"), [400]),
        "an upgrade, NUL in a value": (with_lines(head(), b"A: b\0"), [400]),
        "an upgrade, a colon too few": (with_lines(head(), b"A"), [400]),
        "an upgrade, a space before a colon": (with_lines(head(), b"Content-Length : 5"), [400]),
    }
    return [Row(f"header lines: {name}", (sent,), answers) for name, (sent, answers) in lines.items()]


def framing() -> list[Row]:
    """Where two programs in a row may not agree where a request ends (request smuggling)."""
    shapes = {
        "Content-Length twice, alike": ("Content-Length: 3\nContent-Length: 3\n\nabc", [400]),
        "Content-Length twice, not alike": ("Content-Length: 3\nContent-Length: 4\n\nabcd", [400]),
        "Content-Length as a list": ("Content-Length: 3, 3\n\nabc", [400]),
        "Content-Length below zero": ("Content-Length: -3\n\nabc", [400]),
        "Content-Length with a sign": ("Content-Length: +3\n\nabc", [400]),
        "Content-Length as hex": ("Content-Length: 0x3\n\nabc", [400]),
        "Content-Length as text": ("Content-Length: three\n\nabc", [400]),
        "Content-Length, empty": ("Content-Length:\n\nabc", [400]),
        "Content-Length beyond 64 bits": ("Content-Length: 99999999999999999999999\n\nabc", [400]),
        "Content-Length with spaces": ("Content-Length: 3 3\n\nabc", [400]),
        "Content-Length and chunks": ("Content-Length: 3\nTransfer-Encoding: chunked\n\n0\n\n", [400]),
        "chunks and Content-Length": ("Transfer-Encoding: chunked\nContent-Length: 3\n\n0\n\n", [400]),
        "an unknown coding": ("Transfer-Encoding: xchunked\n\n0\n\n", [400]),
        "chunks not last": ("Transfer-Encoding: chunked, gzip\n\n0\n\n", [400]),
        "chunks, then identity": ("Transfer-Encoding: chunked\nTransfer-Encoding: identity\n\n0\n\n", [400]),
        "a tab before chunks": ("Transfer-Encoding:\tchunked\n\n0\n\n", [404]),
        "chunks in capitals": ("Transfer-Encoding: CHUNKED\n\n0\n\n", [404]),
        "a chunk that is good": ("Transfer-Encoding: chunked\n\n3\nabc\n0\n\n", [404]),
        "a chunk with an extension": ("Transfer-Encoding: chunked\n\n3;a=b\nabc\n0\n\n", [404]),
        "a trailer": ("Transfer-Encoding: chunked\n\n0\nA: b\n\n", [404]),
        "a size that is none": ("Transfer-Encoding: chunked\n\nxyz\nabc\n0\n\n", [400]),
        "a size below zero": ("Transfer-Encoding: chunked\n\n-1\nabc\n0\n\n", [400]),
        "a size with 0x": ("Transfer-Encoding: chunked\n\n0x3\nabc\n0\n\n", [400]),
        "a size beyond 64 bits": ("Transfer-Encoding: chunked\n\nfffffffffffffffff\nabc\n0\n\n", [400]),
        "a chunk longer than its size": ("Transfer-Encoding: chunked\n\n3\nabcdef\n0\n\n", [400]),
        "no line end behind a chunk": ("Transfer-Encoding: chunked\n\n3\nabc0\n\n", [400]),
    }
    rows = [Row(f"framing: {name}", (POST + raw(text),), answers) for name, (text, answers) in shapes.items()]
    chunked = b"Transfer-Encoding: chunked\r\n\r\n"
    return [
        *rows,
        Row("framing: LF behind a chunk's size", (POST + chunked + b"3\nabc\r\n0\r\n\r\n",), [400]),
        Row("framing: a body behind GET", (PLAIN + b"Content-Length: 3\r\n\r\nabc",), [200]),
        Row(
            "framing: a request as the body of a GET",
            (PLAIN + b"Content-Length: 60\r\n\r\n" + request("/metrics"),),
            [200],
        ),
        Row("framing: a body that never comes", (kept()[:-2] + b"Content-Length: 100\r\n\r\n",), [200]),
        Row("framing: half a body", (kept()[:-2] + b"Content-Length: 100\r\n\r\nabc",), [200]),
        Row("framing: chunks that never end", (kept()[:-2] + chunked + b"3\r\nabc\r\n",), [200]),
        Row(
            "framing: Expect without a body",
            (with_lines(request(), b"Expect: 100-continue", b"Content-Length: 9"),),
            [200],
        ),
        Row("framing: an Expect that is none", (with_lines(request(), b"Expect: evil"),), [200]),
    ]


def upgrades() -> list[Row]:
    refused: dict[str, tuple[bytes, int]] = {
        "no key": (head(Sec_WebSocket_Key=None), 400),
        "an empty key": (head(Sec_WebSocket_Key=""), 400),
        "a short key": (head(Sec_WebSocket_Key="short"), 400),
        "a key of 15 bytes": (head(Sec_WebSocket_Key="MDEyMzQ1Njc4OWFiY2Rl"), 400),
        "a key of 17 bytes": (head(Sec_WebSocket_Key="MDEyMzQ1Njc4OWFiY2RlZmc="), 400),
        "a key of 8 KiB": (head(Sec_WebSocket_Key="A" * 8000), 400),
        "a key that is no base64": (head(Sec_WebSocket_Key="!!!!!!!!!!!!!!!!!!!!!!=="), 400),
        "a key above 127": (head(Sec_WebSocket_Key="\xe4" * 24), 400),
        "two keys": (with_lines(head(), f"Sec-WebSocket-Key: {KEY}".encode()), 400),
        "two keys in one line": (head(Sec_WebSocket_Key=f"{KEY}, {KEY}"), 400),
        "no version": (head(Sec_WebSocket_Version=None), 400),
        "version 0": (head(Sec_WebSocket_Version="0"), 400),
        "version 8": (head(Sec_WebSocket_Version="8"), 400),
        "version 13 and 8": (head(Sec_WebSocket_Version="13, 8"), 400),
        "version 013": (head(Sec_WebSocket_Version="013"), 400),
        "two versions": (with_lines(head(), b"Sec-WebSocket-Version: 13"), 400),
        "two Upgrades, alike": (with_lines(head(), b"Upgrade: websocket"), 400),
        "two Upgrades, another one last": (with_lines(head(), b"Upgrade: h2c"), 400),
        "two Upgrades, another one first": (with_lines(head(Upgrade="h2c"), b"Upgrade: websocket"), 400),
        "to h2c": (head(Upgrade="h2c", Connection="Upgrade, close"), 426),
        "to two in one line": (head(Upgrade="websocket, h2c", Connection="Upgrade, close"), 426),
        "to nothing": (head(Upgrade="", Connection="Upgrade, close"), 426),
        "to a NUL": (head(Upgrade="websocket\0"), 400),
        "without Connection": (head(Connection=None), 426),
        "with Connection: close": (head(Connection="close"), 426),
        "by POST": (head(method="POST"), 426),
        "by OPTIONS": (head(method="OPTIONS"), 426),
        "by CONNECT": (head(method="CONNECT", target="localhost:80"), 426),
        "by HTTP/1.0": (head(version="HTTP/1.0"), 400),
        "by HTTP/2.0": (head(version="HTTP/2.0"), 400),
        "a body": (with_lines(head(), b"Content-Length: 5") + b"hello", 400),
        "a body that never comes": (with_lines(head(), b"Content-Length: 5"), 400),
        "a body of chunks": (with_lines(head(), b"Transfer-Encoding: chunked") + b"0\r\n\r\n", 400),
        "chunks that never come": (with_lines(head(), b"Transfer-Encoding: chunked"), 400),
        "Content-Length twice": (with_lines(head(), b"Content-Length: 0", b"Content-Length: 5"), 400),
        "Content-Length below zero": (with_lines(head(), b"Content-Length: -1"), 400),
        "a path that is none": (head(target="/nowhere"), 404),
        "absolute": (head(target=f"ws://{EVIL}/"), 404),
        "absolute, of the grid": (head(target="http://localhost/"), 101),
        "dots": (head(target="/../"), 404),
        "a bad escape": (head(target="/%zz"), 404),
        "an endpoint without a worker": (head(target="/playwright/chromium/0123abcd.secret"), 404),
        "an endpoint of nonsense": (head(target="/playwright/../../x"), 404),
        "another browser": (head(target="/?browser=opera"), 400),
        "a browser of 8 KiB": (head(target="/?browser=" + "x" * 8000), 400),
        "a browser with a NUL": (head(target="/?browser=chromium%00"), 400),
        "a browser in Redis' words": (head(target="/?browser=chromium%0d%0aFLUSHALL"), 400),
        "two browsers": (head(target="/?browser=chromium&browser=firefox"), 400),
        "two browsers of the client": (
            with_lines(head(x_playwright_browser="chromium"), b"x-playwright-browser: webkit"),
            400,
        ),
        "a browser without workers": (head(target="/?browser=webkit"), 400),
        "a version that is old": (head(User_Agent="Playwright/1.0.0 (x64)"), 428),
        "a version of 8000 digits": (head(User_Agent="Playwright/" + "9" * 4000 + "." + "9" * 4000), 428),
        "a version in a second User-Agent": (with_lines(head(User_Agent="x"), b"User-Agent: Playwright/1.0.0"), 428),
    }
    taken = {
        "in capitals": head(Upgrade="WebSocket", Connection="UPGRADE"),
        "in a list": head(Connection="keep-alive, Upgrade"),
        "with Content-Length: 0": with_lines(head(), b"Content-Length: 0"),
        "with a query of nonsense": head(target="/?%00=%ff&&&=&x=" + "y" * 4000),
        "with the path of nothing": head(target="/?"),
        "with headers that are nobody's business": head(
            Cookie="a=b", X_Forwarded_For="1.2.3.4", X_Playwright_Evil="x" * 4000
        ),
        "with a version that is none": head(User_Agent="Playwright/evil"),
        "with a User-Agent of bytes": head(User_Agent="\xff\xfe"),
        "with Expect": head(Expect="100-continue"),
        "to a subprotocol": head(Sec_WebSocket_Protocol="evil, superchat"),
        "with extensions that are none": head(Sec_WebSocket_Extensions=";;;,,,="),
        "with an extension that is unknown": head(Sec_WebSocket_Extensions="x-evil; a=b"),
    }
    return [
        *(Row(f"upgrade: {name}", (sent,), [status]) for name, (sent, status) in refused.items()),
        *(Row(f"upgrade: {name}", (sent,), [101]) for name, sent in taken.items()),
    ]


def names() -> list[Row]:
    """Host and Origin."""
    hosts = {
        "localhost": 200,
        "localhost:1": 200,
        "LOCALHOST": 200,
        "localhost.": 200,
        "a.localhost": 200,
        "127.0.0.1": 200,
        "127.9.9.9": 200,
        "[::1]": 200,
        "[::ffff:127.0.0.1]": 200,
        EVIL: 403,
        f"{EVIL}:80": 403,
        f"localhost.{EVIL}": 403,
        f"127.0.0.1.{EVIL}": 403,
        "0.0.0.0": 403,
        "10.0.0.1": 403,
        "169.254.169.254": 403,
        "[::]": 403,
        "2130706433": 403,  # 127.0.0.1 for a browser, which then says so
        "0x7f.1": 403,
        "": 403,
        "grid": 403,
        "localhost localhost": 400,
        "localhost, evil.example": 400,
        f"localhost@{EVIL}": 400,
        "localhost/": 400,
        "localhost:80:80": 400,
        "localhost:http": 400,
        "::1": 400,
        "[::1": 400,
        "[localhost]": 400,
    }
    rows = []
    for host, status in hosts.items():
        rows.append(Row(f"Host: {host!r}", (request("/v1/workers", Host=host),), [status]))
        rows.append(Row(f"Host of an upgrade: {host!r}", (head(Host=host),), [101 if status == 200 else status]))
    rows += [
        Row("Host: none", (request(Host=None),), [400]),
        Row("Host: none, upgrade", (head(Host=None),), [400]),
        Row("Host: two", (with_lines(request(), b"Host: localhost"),), [400]),
        Row("Host: two, upgrade", (with_lines(head(), b"Host: localhost"),), [400]),
        Row("Host: two, one evil", (with_lines(request(), f"Host: {EVIL}".encode()),), [400]),
        Row("Host: above 127", (request(Host="l\xf6calhost"),), [403]),
    ]
    origins = [
        f"http://{EVIL}",
        "null",
        "http://localhost",
        "http://127.0.0.1:8080",
        "file://",
        "",
        "\xff",
        "chrome-extension://a",
    ]
    for origin in origins:
        rows.append(Row(f"Origin: {origin!r}", (request("/v1/workers", Origin=origin),), [403]))
        rows.append(Row(f"Origin of an upgrade: {origin!r}", (head(Origin=origin),), [403]))
    return [*rows, Row("Origin: two", (with_lines(head(Origin="null"), b"Origin: http://localhost"),), [403])]


def pipelines() -> list[Row]:
    """More than one request on a connection, in one segment."""
    bad_chunk = kept()[:-2] + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"
    return [
        Row("pipeline: two", (kept() + request(),), [200, 200]),
        Row("pipeline: behind a HEAD", (request(method="HEAD", Connection=None) + request(),), [200, 200]),
        Row("pipeline: behind an OPTIONS", (request(method="OPTIONS", Connection=None) + request(),), [204, 200]),
        Row("pipeline: fifty", (kept() * 49 + request(),), [200] * 50),
        Row("pipeline: a request behind the last one", (request() + request("/metrics"),), [200]),
        Row("pipeline: junk behind the last one", (request() + b"\0\xff junk\r\n\r\n",), [200]),
        Row("pipeline: junk", (kept() + b"\0\xff junk\r\n\r\n",), [200, 400]),
        Row("pipeline: junk behind three", (kept() * 3 + b"\x16\x03\x01",), [200, 200, 200, 400]),
        Row("pipeline: junk in a second segment", (kept(), b"\0\xff junk\r\n\r\n"), [200, 400]),
        Row("pipeline: a head that is too large", (kept() + request(A="b" * 40 * KIB),), [200, 431]),
        Row(
            "pipeline: a head that is too large, without its end",
            (kept() + request(A="b" * 80 * KIB)[:-4],),
            [200, 431],
        ),
        Row("pipeline: a bad chunk first", (bad_chunk + kept(),), [400]),
        Row("pipeline: a bad chunk", (kept() + bad_chunk,), [200, 400]),
        Row("pipeline: a bad chunk behind two", (kept("/v1/status") + kept() + bad_chunk,), [200, 200, 400]),
        Row("pipeline: a refusal first", (kept("/nothing") + request(),), [404, 200]),
        Row("pipeline: an upgrade", (kept() + head(),), [200, 101]),
        Row("pipeline: an upgrade behind ten", (kept("/metrics") * 10 + head(),), [200] * 10 + [101]),
        Row("pipeline: an upgrade that is refused", (kept() + head(Origin="null"),), [200, 403]),
        Row("pipeline: an upgrade elsewhere", (kept() + head(target="/nowhere"),), [200, 404]),
        Row(
            "pipeline: an upgrade with a body",
            (kept() + with_lines(head(), b"Content-Length: 5") + b"hello",),
            [200, 400],
        ),
        Row("pipeline: an upgrade with two Upgrades", (kept() + with_lines(head(), b"Upgrade: h2c"),), [200, 400]),
        Row("pipeline: an upgrade that is too large", (kept() + head(A="b" * 40 * KIB),), [200, 431]),
        Row("pipeline: an upgrade in pieces", (kept() + head()[:50], head()[50:]), [200, 101]),
        Row("pipeline: two upgrades", (head() + head(),), [101]),
        Row("pipeline: a request behind an upgrade", (head() + request(),), [101]),
        Row("pipeline: a request behind a refused upgrade", (head(Origin="null") + request(),), [403]),
        Row("pipeline: a request within an upgrade's early bytes, 100 KiB", (head() + request() * 1000,), [101]),
    ]


def slow() -> list[Row]:
    """A head has ten seconds, from its first byte to its last."""
    drip = tuple(bytes([byte]) for byte in request()[:40])
    return [
        Row("slow: nothing", (b"",), []),
        Row("slow: a single byte", (b"G",), [408]),
        Row("slow: a line end", (b"\r\n",), [408]),
        Row("slow: half a request line", (b"GET / HT",), [408]),
        Row("slow: half a head", (request()[:-2],), [408]),
        Row("slow: half an upgrade", (head()[:-3],), [408]),
        Row("slow: a byte each half second", drip, [408], pause_s=0.5),
        Row("slow: half a second head", (kept() + request()[:-2],), [200, 408]),
        Row("slow: nothing behind a request", (kept(),), [200]),
        Row(
            "slow: a good head in pieces", tuple(head()[start : start + 9] for start in range(0, len(head()), 9)), [101]
        ),
    ]


ROWS: Final = [
    *first_bytes(),
    *request_lines(),
    *header_lines(),
    *framing(),
    *upgrades(),
    *names(),
    *pipelines(),
    *slow(),
]
