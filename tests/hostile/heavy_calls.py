"""What a client sends to keep Node busy, and what comes of it: calls of Playwright's protocol with hostile values."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from tests.hostile.calls import evaluate, goto, har_of
from tests.support.https_server import certificate_file, https_server, large_diffie_hellman, packed_certificate
from tests.support.protocol_client import BOUND_S, ProtocolClient, Refusal, protocol_client

TOO_MUCH_WORK: Final = "what its client asked for takes too long"
TOO_LARGE: Final = "too large for the grid"
TOO_LONG_TO_OPEN: Final = "takes too long for the grid"

PLACE: Final = "http://nowhere.test"
"""No such name: what is not intercepted there fails at once."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a client is."""

    client: ProtocolClient
    context: str
    page: str
    site: str
    """The address of an HTTP server that answers with `BODIES`."""

    @property
    def requests(self) -> str:
        """What the context sends requests of its own with."""
        return str(self.client.objects[self.context][1]["requestContext"]["guid"])

    async def send(self, guid: str, method: str, /, **params: Any) -> dict[str, Any]:
        return await self.client.send(guid, method, **params)

    async def evaluate(self, expression: str) -> Any:
        return await evaluate(self.client, self.page, expression)

    async def fetch(self, path: str) -> None:
        """From the page; `path` is an expression."""
        await self.evaluate(f"fetch('{PLACE}/' + {path}).catch(() => 0)")


@dataclass(frozen=True, slots=True)
class Heavy:
    """A call that would keep Node busy."""

    name: str
    tries: str
    """The messages whose handling this is about: `Type.method Type.method`."""
    call: Callable[[At], Awaitable[object]]
    answer: str = ""
    """Part of the client's error, or of the sentence with which its session ends. Empty: it gets what it asked for."""

    async def once(self, endpoint: str, site: str) -> str:
        """A client connects, does it and leaves; returns its error, if there was one."""
        async with protocol_client(endpoint) as client:
            context = await client.new_context()
            page = await client.new_page(context)
            try:
                await self.call(At(client, context, page, site))
            except Refusal as refusal:
                return str(refusal)
        return ""


HEAVY: Final[list[Heavy]] = []


def heavy(tries: str, answer: str = "") -> Callable[[Callable[..., Awaitable[object]]], None]:
    """Puts a call into the list, under the name of its function."""
    return lambda call: HEAVY.append(Heavy(call.__name__, tries, call, answer))


# Patterns


PATTERNS: Final = (
    "Page.setNetworkInterceptionPatterns BrowserContext.setNetworkInterceptionPatterns "
    "Page.setWebSocketInterceptionPatterns BrowserContext.setWebSocketInterceptionPatterns"
)
URL_PARTS: Final = ("hash", "hostname", "password", "pathname", "port", "protocol", "search", "username")


async def routed(at: At, pattern: dict[str, Any], path: str) -> None:
    await at.send(at.page, "setNetworkInterceptionPatterns", patterns=[pattern])
    await at.fetch(path)


@heavy(PATTERNS)
async def a_pattern_that_backtracks(at: At) -> None:
    await routed(at, {"regexSource": "(a+)+b", "regexFlags": ""}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_pattern_that_only_backtracking_can_match(at: At) -> None:
    await routed(at, {"regexSource": "(?=a)(a+)+b", "regexFlags": ""}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_glob_with_many_stars(at: At) -> None:
    await routed(at, {"glob": "**/" + "*x" * 200 + "y"}, "'x'.repeat(2_000_000)")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_url_pattern(at: At) -> None:
    parts = {**dict.fromkeys(URL_PARTS, "*"), "pathname": "/((?:a+)+b)"}
    await routed(at, {"urlPattern": parts}, "'a'.repeat(40)")


@heavy(PATTERNS, TOO_LARGE)
async def a_pattern_that_takes_long_to_compile(at: At) -> None:
    await routed(at, {"regexSource": "\\p{RGI_Emoji}" * 300, "regexFlags": "v"}, "'a'")


@heavy(PATTERNS, TOO_MUCH_WORK)
async def a_pattern_of_web_sockets(at: At) -> None:
    patterns = [{"regexSource": "(a+)+b", "regexFlags": "i"}]
    await at.send(at.context, "setWebSocketInterceptionPatterns", patterns=patterns)
    await goto(at.client, at.page, "data:text/html,")  # with older drivers it is for pages that are loaded from now on
    await at.evaluate(f"void new WebSocket('{PLACE.replace('http', 'ws')}/' + 'a'.repeat(40))")
    await at.client.ended


@heavy("Tracing.harStart", TOO_MUCH_WORK)
async def a_pattern_of_a_har(at: At) -> None:
    options = {"urlRegexSource": "(a+)+b", "urlRegexFlags": "i"}
    await at.send(har_of(at.client, at.context), "harStart", options=options)
    await at.fetch("'a'.repeat(40)")


@heavy("BrowserContext.clearCookies", TOO_MUCH_WORK)
async def a_pattern_of_cookies(at: At) -> None:
    cookie = {"name": "a" * 40, "value": "x", "domain": "nowhere.test", "path": "/"}
    await at.send(at.context, "addCookies", cookies=[cookie])
    await at.send(at.context, "clearCookies", nameRegexSource="(a+)+b", nameRegexFlags="i")


# Bodies

MIB: Final = 1024 * 1024
BODIES: Final = {
    "/gzip": ("gzip", zlib.MAX_WBITS | 16, 130 * MIB),
    "/deflate": ("deflate", zlib.MAX_WBITS, 130 * MIB),
    "/two-thirds": ("gzip", zlib.MAX_WBITS | 16, 90 * MIB),
}
"""How they are packed, and how large they are unpacked."""


@cache
def packed(path: str) -> tuple[bytes, str]:
    """The body of a path, and its encoding."""
    encoding, bits, size = BODIES[path]
    packer = zlib.compressobj(1, zlib.DEFLATED, bits)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush(), encoding


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[str]:
    """Answers with `BODIES`; yields its address."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        body, encoding = await asyncio.to_thread(packed, path)
        fields = f"Content-Length: {len(body)}\r\nContent-Encoding: {encoding}\r\nConnection: close"
        with contextlib.suppress(ConnectionError):
            writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@heavy("APIRequestContext.fetch", TOO_LARGE)
async def a_body_that_unpacks_to_much(at: At) -> None:
    await at.send(at.requests, "fetch", url=at.site + "/gzip", timeout=BOUND_S * 1000)


@heavy("APIRequestContext.fetch", TOO_LARGE)
async def a_body_that_inflates_to_much(at: At) -> None:
    await at.send(at.requests, "fetch", url=at.site + "/deflate", timeout=BOUND_S * 1000)


@heavy("APIRequestContext.fetch APIRequestContext.fetchResponseBody APIRequestContext.disposeAPIResponse", TOO_LARGE)
async def many_bodies_that_nobody_disposes_of(at: At) -> None:
    for _ in range(3):
        await at.send(at.requests, "fetch", url=at.site + "/two-thirds", timeout=BOUND_S * 1000)


# Values


OBJECTS: Final = {"value": {"a": [{"n": 1}] * 200_000, "id": 1}, "handles": []}

MANY_VALUES: Final = {"value": {"a": [{"n": 1}] * 140_000, "id": 1}, "handles": []}
"""About as many as are taken."""


@heavy("Frame.evaluateExpression", TOO_LARGE)
async def an_argument_of_many_values(at: At) -> None:
    await at.send(at.client.frame(at.page), "evaluateExpression", expression="x => 1", isFunction=True, arg=OBJECTS)


@heavy("APIRequestContext.fetch", TOO_LARGE)
async def a_form_of_many_parts(at: At) -> None:
    parts = [{"name": "x", "value": "y"}] * 150_000
    await at.send(at.requests, "fetch", url=at.site, method="POST", multipartData=parts, timeout=0)


@heavy("Frame.evaluateExpression JSHandle.jsonValue", TOO_LARGE)
async def an_answer_of_many_values(at: At) -> None:
    await at.evaluate("Array.from({ length: 400_000 }, (_, n) => n)")


@heavy("CDPSession.send", TOO_LARGE)
async def an_answer_of_many_values_over_cdp(at: At) -> None:
    session = (await at.send(at.context, "newCDPSession", page={"guid": at.page}))["session"]["guid"]
    script = "Array.from({ length: 400_000 }, (_, n) => n)"
    answer = await at.client.cdp(session, "Runtime.evaluate", expression=script, returnByValue=True)
    raise Refusal(answer["exceptionDetails"]["text"])  # as CDP has it


# Texts that Playwright parses


@heavy("Frame.querySelector Frame.click", TOO_LARGE)
async def a_long_selector(at: At) -> None:
    await at.send(at.client.frame(at.page), "querySelector", selector="a >> " * 100_000 + "b")


@heavy("Page.screenshot Page.expectScreenshot", TOO_LARGE)
async def a_long_selector_of_a_mask(at: At) -> None:
    mask = [{"frame": {"guid": at.client.frame(at.page)}, "selector": "a " * 50_000}]
    await at.send(at.page, "screenshot", mask=mask, timeout=BOUND_S * 1000)


@heavy("Frame.expect", TOO_LARGE)
async def a_long_aria_snapshot(at: At) -> None:
    expected = {"value": {"s": "- text: x\n" * 30_000}, "handles": []}
    call = {"selector": "body", "expression": "to.match.aria", "isNot": False, "expectedValue": expected}
    await at.send(at.client.frame(at.page), "expect", timeout=1000, **call)


@heavy(PATTERNS, TOO_LARGE)
async def many_globs(at: At) -> None:
    patterns = [{"glob": f"/x/{n}/*"} for n in range(20_000)]
    await at.send(at.page, "setNetworkInterceptionPatterns", patterns=patterns)


# Certificates


CONTEXTS: Final = "Browser.newContext Browser.newContextForReuse"
NOWHERE: Final = "https://nowhere.test"


@heavy(CONTEXTS, TOO_LONG_TO_OPEN)
async def a_packed_certificate_whose_key_is_derived_endlessly(at: At) -> None:
    await at.send(at.client.one("Browser"), "newContext", **packed_certificate(NOWHERE, "endless.pfx"))


@heavy(CONTEXTS, TOO_LONG_TO_OPEN)
async def an_encrypted_key_that_is_derived_for_seconds(at: At) -> None:
    certificate = {"cert": certificate_file("client.pem"), "key": certificate_file("slow-key.pem"), "passphrase": "x"}
    certificates = [{"origin": NOWHERE, **certificate}]
    await at.send(at.client.one("Browser"), "newContextForReuse", clientCertificates=certificates)


@heavy(CONTEXTS, TOO_LARGE)
async def a_key_that_takes_long_to_sign_with(at: At) -> None:
    pem = certificate_file("large.pem")
    certificates = [{"origin": NOWHERE, "cert": pem, "key": pem}]
    await at.send(at.client.one("Browser"), "newContext", clientCertificates=certificates)


@heavy(CONTEXTS, TOO_LARGE)
async def a_certificate_of_many_bytes(at: At) -> None:
    pem = certificate_file("client.pem") * 1000
    certificates = [{"origin": NOWHERE, "cert": pem, "key": pem}]
    await at.send(at.client.one("Browser"), "newContext", clientCertificates=certificates)


@heavy("APIRequestContext.fetch", "before secure TLS connection was established")
async def a_server_that_says_how_large_the_keys_are(at: At) -> None:
    async with https_server(tls=large_diffie_hellman()) as url:
        await at.send(at.requests, "fetch", url=url, ignoreHTTPSErrors=True, timeout=BOUND_S * 1000)


# Images


def png_head(width: int, height: int) -> str:
    """Of a PNG that says that it is so large."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head = b"IHDR" + size + b"\x08\x06\0\0\0"
    data = b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + head + zlib.crc32(head).to_bytes(4, "big")
    return base64.b64encode(data).decode()


@heavy("Page.expectScreenshot", TOO_LARGE)
async def a_comparison_with_a_large_image(at: At) -> None:
    await at.send(at.page, "expectScreenshot", expected=png_head(60_000, 60_000), isNot=False, timeout=3000)


@heavy("Page.expectScreenshot", TOO_LARGE)
async def a_comparison_of_images_that_are_large_together(at: At) -> None:
    await at.send(at.page, "setViewportSize", viewportSize={"width": 200, "height": 4000})
    await at.send(at.page, "expectScreenshot", expected=png_head(8000, 10), isNot=False, timeout=3000)


@heavy("Page.expectScreenshot Page.screenshot")
async def an_ordinary_comparison(at: At) -> None:
    taken = (await at.send(at.page, "screenshot", timeout=BOUND_S * 1000))["binary"]
    await at.send(at.page, "expectScreenshot", expected=taken, isNot=False, timeout=BOUND_S * 1000)


@heavy("Frame.evaluateExpression")
async def as_many_values_as_are_taken(at: At) -> None:
    expression = "all => Array.from({ length: 140_000 }, (_, n) => ({})).length + all.length"
    await at.send(
        at.client.frame(at.page), "evaluateExpression", expression=expression, isFunction=True, arg=MANY_VALUES
    )


@heavy("APIRequestContext.fetch APIRequestContext.disposeAPIResponse")
async def many_bodies_that_are_disposed_of(at: At) -> None:
    for _ in range(4):
        got = await at.send(at.requests, "fetch", url=at.site + "/two-thirds", timeout=BOUND_S * 1000)
        await at.send(at.requests, "disposeAPIResponse", fetchUid=got["response"]["fetchUid"])
