"""Why each message of Playwright's protocol keeps Node from its other clients for no longer than a moment.

`heavy_calls.py` tries those that could. Here are all others, by what bounds them.
"""

from typing import Final

BY: Final[dict[str, dict[str, str]]] = {
    "its selector is bounded as that of Frame.querySelector is": {
        "ElementHandle": "evalOnSelector evalOnSelectorAll querySelector querySelectorAll screenshot waitForSelector",
        "Frame": "ariaSnapshot ariaSnapshotJSON blur check dblclick dispatchEvent dragAndDrop drop evalOnSelector "
        "evalOnSelectorAll fill focus getAttribute highlight hover innerHTML innerText inputValue isChecked isDisabled "
        "isEditable isEnabled isHidden isVisible press queryCount querySelectorAll resolveSelector selectOption "
        "setInputFiles tap textContent type uncheck waitForSelector",
        "Page": "registerLocatorHandler",
    },
    "its values are counted before it is parsed, and those of the page's answer": {
        "APIRequestContext": "storageState",
        "BindingCall": "reject resolve",
        "BrowserContext": "addCookies cookies credentialsCreate credentialsDelete credentialsGet credentialsInstall "
        "grantPermissions setExtraHTTPHeaders setStorageState storageState updateSubscription",
        "ElementHandle": "evaluateExpression evaluateExpressionHandle getProperty getPropertyList jsonValue "
        "selectOption",
        "Frame": "evaluateExpressionHandle waitForFunction webmcpCallTool webmcpTools",
        "JSHandle": "evaluateExpression evaluateExpressionHandle getProperty getPropertyList",
        "Page": "setExtraHTTPHeaders webStorageItems",
        "Worker": "evaluateExpression evaluateExpressionHandle",
    },
    "it passes a text or bytes on; a message has 256 MiB at most, and what waits for a client is bounded": {
        "Artifact": "saveAsStream stream",
        "BrowserContext": "addInitScript createTempFiles exposeBinding exposeConsoleApi registerSelectorEngine",
        "ElementHandle": "fill innerHTML innerText inputValue setInputFiles textContent type",
        "Frame": "addScriptTag addStyleTag content setContent title",
        "Page": "addInitScript exposeBinding keyboardInsertText keyboardType pdf screencastChapter "
        "screencastShowOverlay webStorageGetItem webStorageSetItem",
        "Response": "body",
        "Route": "continue fulfill",
        "Stream": "read",
        "WebSocketRoute": "closePage closeServer sendToPage sendToServer",
        "WritableStream": "write",
    },
    "files on the disk are written and packed by Node's threads, piece by piece": {
        "Artifact": "cancel delete failure",
        "BrowserContext": "startRecording stopRecording",
        "Page": "screencastStart screencastStop",
        "Tracing": "harExport tracingGroup tracingGroupEnd tracingStart tracingStartChunk tracingStop tracingStopChunk",
    },
    "lists that a page fills: Playwright keeps 200 entries of each": {
        "APIRequestContext": "fetchLog",
        "Page": "clearConsoleMessages clearPageErrors consoleMessages pageErrors requests",
    },
    "the browser computes, and its answer is bounded": {
        "Page": "startCSSCoverage startJSCoverage stopCSSCoverage stopJSCoverage",
    },
    "a few numbers, names or flags": {
        "APIRequestContext": "addCookies clearCookies cookies dispose",
        "Browser": "close defaultUserAgentForTest disconnectFromReusedContext killForTests stopServer",
        "BrowserContext": "clearPermissions clockFastForward clockInstall clockPauseAt clockResume clockRunFor "
        "clockSetFixedTime clockSetSystemTime close newCDPSession newPage pause setGeolocation setHTTPCredentials "
        "setOffline setTestIdAttributeName",
        "CDPSession": "detach",
        "Debugger": "enable next requestPause resume runTo",
        "Dialog": "accept dismiss",
        "Disposable": "dispose",
        "ElementHandle": "boundingBox check click contentFrame dblclick dispatchEvent dispose focus getAttribute hover "
        "isChecked isDisabled isEditable isEnabled isHidden isVisible ownerFrame press scrollIntoViewIfNeeded "
        "selectText tap uncheck waitForElementState",
        "Frame": "frameElement goto hideHighlight waitForTimeout",
        "JSHandle": "dispose",
        "Page": "bringToFront cancelPickLocator close emulateMedia goBack goForward hideHighlight keyboardDown "
        "keyboardPress keyboardUp mouseClick mouseDown mouseMove mouseUp mouseWheel pickLocator reload requestGC "
        "resolveLocatorHandlerNoReply runBeforeUnload screencastFrameAck screencastHideActions "
        "screencastRemoveOverlay screencastSetOverlayVisible screencastShowActions setDockTile setViewportSize "
        "touchscreenTap unregisterLocatorHandler updateSubscription webStorageClear webStorageRemoveItem",
        "Request": "rawRequestHeaders response",
        "Response": "httpVersion rawResponseHeaders securityDetails serverAddr sizes",
        "Root": "initialize",
        "Route": "abort redirectNavigationRequest",
        "Stream": "close",
        "WebSocketRoute": "connect ensureOpened",
        "Worker": "disconnect updateSubscription",
        "WritableStream": "close",
    },
}
"""A message that takes values of two kinds stands under both; refused messages need none."""
