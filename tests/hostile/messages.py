"""Every message of Playwright's protocol, and what the grid does with it when a client sends it."""

from typing import Final

ALLOWED: Final = {
    "APIRequestContext": "addCookies clearCookies cookies dispose disposeAPIResponse fetch fetchLog fetchResponseBody "
    "storageState",
    "Artifact": "cancel delete failure saveAsStream stream",
    "BindingCall": "reject resolve",
    "Browser": "close defaultUserAgentForTest disconnectFromReusedContext killForTests newContext newContextForReuse "
    "stopServer",
    "BrowserContext": "addCookies addInitScript clearCookies clearPermissions clockFastForward clockInstall "
    "clockPauseAt clockResume clockRunFor clockSetFixedTime clockSetSystemTime close cookies createTempFiles "
    "credentialsCreate credentialsDelete credentialsGet credentialsInstall exposeBinding exposeConsoleApi "
    "grantPermissions newCDPSession newPage pause registerSelectorEngine setExtraHTTPHeaders setGeolocation "
    "setHTTPCredentials setNetworkInterceptionPatterns setOffline setStorageState setTestIdAttributeName "
    "setWebSocketInterceptionPatterns startRecording stopRecording storageState updateSubscription",
    "CDPSession": "detach send",
    "Debugger": "enable next requestPause resume runTo",
    "Dialog": "accept dismiss",
    "Disposable": "dispose",
    "ElementHandle": "boundingBox check click contentFrame dblclick dispatchEvent dispose evalOnSelector "
    "evalOnSelectorAll evaluateExpression evaluateExpressionHandle fill focus getAttribute getProperty "
    "getPropertyList hover innerHTML innerText inputValue isChecked isDisabled isEditable isEnabled isHidden "
    "isVisible jsonValue ownerFrame press querySelector querySelectorAll screenshot scrollIntoViewIfNeeded "
    "selectOption selectText setInputFiles tap textContent type uncheck waitForElementState waitForSelector",
    "Frame": "addScriptTag addStyleTag ariaSnapshot ariaSnapshotJSON blur check click content dblclick dispatchEvent "
    "dragAndDrop drop evalOnSelector evalOnSelectorAll evaluateExpression evaluateExpressionHandle expect fill focus "
    "frameElement getAttribute goto hideHighlight highlight hover innerHTML innerText inputValue isChecked isDisabled "
    "isEditable isEnabled isHidden isVisible press queryCount querySelector querySelectorAll resolveSelector "
    "selectOption setContent setInputFiles tap textContent title type uncheck waitForFunction waitForSelector "
    "waitForTimeout webmcpCallTool webmcpTools",
    "JSHandle": "dispose evaluateExpression evaluateExpressionHandle getProperty getPropertyList jsonValue",
    "Page": "addInitScript bringToFront cancelPickLocator clearConsoleMessages clearPageErrors close consoleMessages "
    "emulateMedia expectScreenshot exposeBinding goBack goForward hideHighlight keyboardDown keyboardInsertText "
    "keyboardPress keyboardType keyboardUp mouseClick mouseDown mouseMove mouseUp mouseWheel pageErrors pdf "
    "pickLocator registerLocatorHandler reload requestGC requests resolveLocatorHandlerNoReply runBeforeUnload "
    "screencastChapter screencastFrameAck screencastHideActions screencastRemoveOverlay screencastSetOverlayVisible "
    "screencastShowActions screencastShowOverlay screencastStart screencastStop screenshot setDockTile "
    "setExtraHTTPHeaders setNetworkInterceptionPatterns setViewportSize setWebSocketInterceptionPatterns "
    "startCSSCoverage startJSCoverage stopCSSCoverage stopJSCoverage touchscreenTap unregisterLocatorHandler "
    "updateSubscription webStorageClear webStorageGetItem webStorageItems webStorageRemoveItem webStorageSetItem",
    "Request": "rawRequestHeaders response",
    "Response": "body httpVersion rawResponseHeaders securityDetails serverAddr sizes",
    "Root": "initialize",
    "Route": "abort continue fulfill redirectNavigationRequest",
    "Stream": "close read",
    "Tracing": "harExport harStart tracingGroup tracingGroupEnd tracingStart tracingStartChunk tracingStop "
    "tracingStopChunk",
    "WebSocketRoute": "closePage closeServer connect ensureOpened sendToPage sendToServer",
    "Worker": "disconnect evaluateExpression evaluateExpressionHandle updateSubscription",
    "WritableStream": "close write",
}
"""With every guard, unless what they carry is refused (`BY_WHAT_THEY_CARRY`)."""

COMPATIBLE_REFUSES: Final = {"Artifact": "pathAfterFinished saveAs", "BrowserContext": "showRecorder"}

STRICT_REFUSES: Final = {"Browser": "newBrowserCDPSession startTracing"}
"""On a browser that others share."""

ALWAYS_REFUSED: Final = {"Android": "devices", "Browser": "startServer stopTracing", "Playwright": "newRequest"}
"""`stopTracing` only for who has not started it."""

REFUSED_BY_PLAYWRIGHT: Final = {
    "BrowserType": "connectOverCDP connectToWorker launch launchPersistentContext",
    "Electron": "launch",
}

OF_NO_OBJECT: Final = {
    "AndroidDevice": "close connectToWebView drag fill fling info inputDrag inputPress inputSwipe inputTap inputType "
    "installApk launchBrowser longTap open pinchClose pinchOpen push screenshot scroll shell swipe tap wait",
    "AndroidSocket": "close write",
    "DebugController": "hideHighlight highlight initialize kill resume setRecorderMode setReportStateChanged",
    "ElectronApplication": "browserWindow evaluateExpression evaluateExpressionHandle updateSubscription",
    "JsonPipe": "close send",
    "LocalUtils": "addStackToTracingNoReply asLocatorDescription connect globToRegex harClose harLookup harOpen "
    "harUnzip traceDiscarded tracingStarted zip",
    "SocksSupport": "socksConnected socksData socksEnd socksError socksFailed",
}
"""Nobody who is connected to a running browser has an object of these types."""

OLDER_ALLOWED: Final = {
    "BrowserContext": "disableRecorder harExport harStart waitForEventInfo",
    "Debugger": "waitForEventInfo",
    "EventTarget": "waitForEventInfo",
    "Page": "snapshotForAI waitForEventInfo",
    "WebSocket": "waitForEventInfo",
    "Worker": "waitForEventInfo",
}
"""Messages that some Playwright from 1.58 on had, and the newest has not."""

OLDER_COMPATIBLE_REFUSES: Final = {"BrowserContext": "enableRecorder", "Page": "agent"}

OLDER_REFUSED_BY_PLAYWRIGHT: Final = {"BrowserType": "connectOverCDPTransport"}

OLDER_OF_NO_OBJECT: Final = {
    "AndroidDevice": "waitForEventInfo",
    "ElectronApplication": "waitForEventInfo",
    "PageAgent": "dispose expect extract perform usage waitForEventInfo",
}

COMPATIBLE, STRICT = {"compatible", "strict"}, {"strict"}

BY_WHAT_THEY_CARRY: Final = [
    # type, message, parameters, and the guards that refuse them on a browser that others share
    ("Tracing", "tracingStart", {"name": "../x"}, COMPATIBLE),
    ("Tracing", "tracingStart", {"name": "a/../x"}, set()),
    ("Tracing", "tracingStartChunk", {"name": "a/../../x"}, COMPATIBLE),
    ("Tracing", "tracingStopChunk", {"mode": "entries"}, COMPATIBLE),
    ("Tracing", "tracingStopChunk", {"mode": "archive"}, set()),
    ("Tracing", "harExport", {"mode": "entries"}, COMPATIBLE),
    ("Browser", "newContext", {"acceptDownloads": "internal-browser-default"}, COMPATIBLE),
    ("Browser", "newContextForReuse", {"acceptDownloads": "internal-browser-default"}, COMPATIBLE),
    ("Browser", "newContext", {"acceptDownloads": "accept"}, set()),
    ("Frame", "setInputFiles", {"localDirectory": "/etc"}, COMPATIBLE),
    ("ElementHandle", "setInputFiles", {"localPaths": ["/etc/passwd"]}, COMPATIBLE),
    ("Frame", "drop", {"localPaths": ["/etc/passwd"]}, COMPATIBLE),
    ("Frame", "drop", {"streams": [{"guid": "stream@1"}]}, set()),
    ("CDPSession", "send", {"method": "Page.navigate", "params": {"url": "https://example.org"}}, set()),
    ("CDPSession", "send", {"method": "Target.getTargets"}, STRICT),
    ("CDPSession", "send", {"method": "Tracing.start"}, STRICT),
    ("CDPSession", "send", {"method": "SystemInfo.getInfo"}, STRICT),
    ("CDPSession", "send", {"method": "Browser.getVersion"}, set()),
    ("CDPSession", "send", {"method": "Target.setAutoAttach"}, set()),
    ("CDPSession", "send", {"method": "Storage.getCookies"}, set()),
    ("CDPSession", "send", {"method": "Storage.getCookies", "params": {"browserContextId": "x"}}, STRICT),
    ("CDPSession", "send", {"method": "Page.setDownloadBehavior", "params": {"downloadPath": "/"}}, COMPATIBLE),
    ("CDPSession", "send", {"method": "Page.setDownloadBehavior", "params": {"behavior": "deny"}}, set()),
    ("CDPSession", "send", {"method": "DOM.setFileInputFiles", "params": {"files": ["/x"]}}, COMPATIBLE),
    ("CDPSession", "send", {"method": "Extensions.loadUnpacked", "params": {"path": "/x"}}, COMPATIBLE),
    ("CDPSession", "send", {"method": None, "params": "none"}, set()),
    ("CDPSession", "send", {"method": "Target.createBrowserContext", "params": {"proxyServer": "http://x:80"}}, STRICT),
    ("CDPSession", "send", {"method": "Debugger.setBreakpointByUrl", "params": {"url": "webpack:///x.js"}}, set()),
    ("CDPSession", "send", {"method": "Emulation.setDisplayFeaturesOverride", "params": {"features": [{}]}}, set()),
    ("CDPSession", "send", {"method": "Input.imeSetComposition", "params": {"replacementStart": 0}}, set()),
    ("Frame", "goto", None, set()),
    ("Frame", "goto", {"url": "file:///etc/passwd"}, set()),
]

PLACES_FOR_ALL: Final = [
    "",
    "a/path",
    "https://example.org/chrome://crash",
    "HTTP://localhost:8080",
    "data:text/html,chrome://quit",
    "blob:https://example.org/x",
    "javascript:1",
    "about:blank",
    "about:blank#x",
    "about:srcdoc",
    "view-source:https://example.org",
    "file:///etc/passwd",
    "chrome://crash",
    "chrome://crash/",
]
"""Where every client may go, as far as BLOCK_FILE_URLS does not forbid it."""

PLACES_OF_THE_BROWSER: Final = [
    "chrome://inducebrowsercrashforrealz",
    "chrome://uithreadhang",
    "chrome://settings",
    "chrome://version",
    "chrome://crash/../quit",
    "chrome:quit",
    "Chrome:\\\\quit",
    " \t\x01chrome://quit",
    "chr\tom\ne://quit",
    "chrome-untrusted://print",
    "chrome-extension://x/y.html",
    "devtools://devtools/bundled/inspector.html",
    "view-source:chrome://version",
    "view-source: view-source:chrome://version",
    "about:version",
    "about:crashparent",
    "about:config",
    "about:blankx",
    "resource://gre/",
    "jar:file:///x.jar!/",
    "moz-extension://x/",
    "inspector://x",
    "mailto:somebody@example.org",
]
"""Refused on a browser that others share, unless CLIENT_GUARD is off."""

CRASHES_THE_BROWSER: Final = [
    ("Emulation.setDisplayFeaturesOverride", {"features": []}),
    (
        "Input.imeSetComposition",
        {"text": "", "selectionStart": 0, "selectionEnd": 0, "replacementStart": -1, "replacementEnd": -1},
    ),
]
"""Commands over CDP at which Chromium 156 crashes; refused where others share it, unless CLIENT_GUARD is off."""
