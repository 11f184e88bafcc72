"""The browser's own list of CDP methods, against what is judged (cdp_methods.cjs): a method that is new, and names
files, URLs, or ports of the host, fails here until somebody has looked at it."""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from playwright._impl._driver import compute_driver_executable

from pwgrid.worker.browser.launch import LAUNCHER
from tests.hostile.every_cdp_command import protocol_of
from tests.support.browsers import fit_browser

NODE, _ = compute_driver_executable()

NAMES_THE_HOST = re.compile(
    r"paths?|files?|dirs?|directory|folders?|urls?|uris?|locations?|hosts?|proxy|ports?|address(es)?|sockets?|executable",
    re.IGNORECASE,
)
"""Words in the names of parameters."""

HARMLESS = {
    "names what a page has loaded, or is to be told of": """
        CacheStorage.requestCachedResponse.requestURL CacheStorage.requestEntries.pathFilter
        DOMDebugger.removeXHRBreakpoint.url DOMDebugger.setXHRBreakpoint.url Page.getResourceContent.url
        Page.searchInResource.url Page.addCompilationCache.url Page.produceCompilationCache.scripts.url
        Debugger.setBreakpointByUrl.url Debugger.setBreakpointByUrl.urlRegex Runtime.compileScript.sourceURL
        Debugger.continueToLocation.location Debugger.setBreakpoint.location CSS.addRule.location
        ServiceWorker.skipWaiting.scopeURL ServiceWorker.startWorker.scopeURL
        ServiceWorker.unregister.scopeURL ServiceWorker.updateRegistration.scopeURL
        Input.dispatchKeyEvent.location
        DOM.pushNodeByPathToFrontend.path FileSystem.getDirectory.* Page.enable.enableFileChooserOpenedEvent
    """,
    "is a pattern, or a cookie's": """
        Fetch.enable.patterns.urlPattern Network.setBlockedURLs.* Network.emulateNetworkConditionsByRule.*
        Network.deleteCookies.* Network.getCookies.urls Network.setCookie.* Network.setCookies.* Page.deleteCookie.url
        Storage.setCookies.* Browser.addPrivacySandboxEnrollmentOverride.url
    """,
    "is of a thing that the browser only pretends to have": """
        BluetoothEmulation.* Cast.enable.presentationUrl FedCm.openUrl.accountUrlType Autofill.*
    """,
    "frees what nobody may take": "Tethering.unbind.port",
    "says whether to report something": "Network.enable.reportDirectSocketTraffic",
}
JUDGED_DOMAINS = """
    Accessibility Ads Animation Audits Autofill BackgroundService BluetoothEmulation Browser CSS CacheStorage
    Cast Console CrashReportContext DOM DOMDebugger DOMSnapshot DOMStorage Debugger DeviceAccess
    DeviceOrientation DigitalCredentials Emulation EventBreakpoints Extensions FedCm Fetch FileSystem FindInPage
    HeadlessExperimental HeapProfiler IO IndexedDB Input Inspector LayerTree Log Media Memory Network Overlay
    PWA Page Performance PerformanceTimeline Preload Profiler Runtime Schema Security ServiceWorker
    SmartCardEmulation Storage SystemInfo Target Tethering Tracing WebAudio WebAuthn WebMCP
"""

Domain = dict[str, Any]


@pytest.fixture(scope="module")
def domains() -> list[Domain]:
    return protocol_of(fit_browser("chromium").executable)


@pytest.fixture(scope="module")
def read() -> set[str]:
    """The methods whose parameters are looked at."""
    script = "console.log(JSON.stringify([...require(process.argv[1]).READ.keys()]))"
    argv = [NODE, "-e", script, str(LAUNCHER.with_name("guard") / "cdp_methods.cjs")]
    return set(json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout))


def test_every_method_that_names_files_urls_or_ports_is_judged(domains: list[Domain], read: set[str]) -> None:
    harmless = {each for names in HARMLESS.values() for each in names.split()}
    unjudged = [
        f"{method}.{name}"
        for method, name in parameters(domains)
        if any(NAMES_THE_HOST.fullmatch(word) for word in words(name))
        and method not in read
        and not {f"{method}.{name}", f"{method}.*", f"{method.partition('.')[0]}.*"} & harmless
    ]
    assert unjudged == []


def test_no_domain_is_unknown(domains: list[Domain]) -> None:
    assert {each["domain"] for each in domains} <= set(JUDGED_DOMAINS.split())


def test_every_method_that_is_judged_is_there(domains: list[Domain], read: set[str]) -> None:
    assert read <= {f"{each['domain']}.{command['name']}" for each in domains for command in each["commands"]}


def words(name: str) -> list[str]:
    """Those of the innermost part of "outer.innerName"."""
    return re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.rpartition(".")[2])


def parameters(domains: list[Domain]) -> Iterator[tuple[str, str]]:
    """Each method with each of its parameters, those in objects too, as "outer.inner"."""
    types = {f"{each['domain']}.{one['id']}": one for each in domains for one in each.get("types", [])}

    def below(domain: str, properties: list[Any], prefix: str, seen: frozenset[str]) -> Iterator[str]:
        for each in properties:
            name = prefix + each["name"]
            yield name
            inner = each.get("items", each)
            yield from below(domain, inner.get("properties", []), f"{name}.", seen)
            reference = inner.get("$ref", "")
            full = reference if "." in reference else f"{domain}.{reference}"
            if full in types and full not in seen:
                home = full.partition(".")[0]
                yield from below(home, types[full].get("properties", []), f"{name}.", seen | {full})

    for each in domains:
        for command in each.get("commands", []):
            for name in below(each["domain"], command.get("parameters", []), "", frozenset()):
                yield f"{each['domain']}.{command['name']}", name


DEEP = """
const { CdpFront } = require(process.argv[1]);
const front = Object.create(CdpFront.prototype);
let told = 0;
const connection = { pageGone: () => told++ };
front.sessions = new Map([['0', { connection, isRoot: true, parent: null, children: new Set() }]]);
for (let number = 1; number <= 100_000; number++)
  front.add(String(number), String(number - 1), connection);
front.forget('1');
console.log(JSON.stringify([[...front.sessions.keys()], front.sessions.get('0').children.size, told]));
"""


def test_sessions_as_deep_as_a_client_likes_are_forgotten_with_the_first_of_them() -> None:
    module = LAUNCHER.parent / "cdp" / "cdp_front.cjs"
    done = subprocess.run([NODE, "-e", DEEP, str(module)], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == [["0"], 0, 100_000]
