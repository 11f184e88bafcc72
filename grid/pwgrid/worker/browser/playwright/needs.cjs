// What the browser server uses of Playwright's private objects, by the object: a driver without one of these is not known here, and
// check_driver.cjs says so. A name ends with () if it is to be a function. Of `a|b` one is enough: an adapter beside this file, or the
// module that uses it, takes either.
'use strict';

const NEEDS = {
  driver: 'PlaywrightServer() SocksProxy() WebSocketServer() WebSocket() connection.onmessage()',
  PlaywrightServer: 'prototype.listen() prototype._initPreLaunchedBrowserMode()',
  SocksProxy: 'prototype.setPattern() prototype.listen() prototype.close()',
  socksProxy: '_server.listen()',
  server: '_options.preLaunchedBrowser',
  connection: '_dispatcherByGuid.get() registerDispatcher() dispatch() onmessage()',
  Browser: '_type _guid _object _isolatedContexts.add() newContextForReuse()',
  browser: 'on() off() listeners() contexts() isConnected() options.browserProcess.process options.browserLogsCollector.recentLogs() '
    + 'options.artifactsDir options.browserType|options.name options.sdkLanguage downloadCreated()|_downloadCreated() '
    + 'newContext() doCreateNewContext() newContextForReuse() contextForReuse() newBrowserCDPSession() startTracing() stopTracing() '
    + '_tracingRecording _session.send() _session.on() _session.off() _session.createChildSession() _contexts.get() '
    + '_clientRootSession() _connection._transport _connection._sessions.get()',
  transport: '_pipeRead.on() _pipeWrite.write() _pendingBuffers onmessage()',
  session: '_callbacks.get() _sendMayFail() _sessionId',
  rootSession: 'attachToTarget()',
  context: 'once() close() doClose() _options _browserContextId newCDPSession() possiblyUninitializedPages() _didCloseInternal() '
    + '_deleteAllDownloads() _deleteAllTempDirs()',
  page: 'isClosed() mainFrame() browserContext initializedOrUndefined() delegate.navigateFrame() screenshotter.screenshotPage() '
    + 'screenshotter.screenshotElement()',
  Page: '_type _guid _parent._type expectScreenshot() connection._activeProgressControllers.size|_activeProgressControllers.size',
  Playwright: '_type cleanup()',
  APIRequestContext: '_object.fetchResponses.set()',
  CDPSession: '_type send() _object._session.send() _object._session._parentSession _object._session._sessionId',
};

// Returns what `objects` (by the names above) have not, as sentences' words.
function missingIn(objects) {
  const missing = [];
  for (const [name, needs] of Object.entries(NEEDS)) {
    for (const need of needs.split(' ')) {
      if (!need.split('|').some(each => has(objects[name], each)))
        missing.push(`${name}.${need}`);
    }
  }
  return missing;
}

function has(object, path) {
  const value = path.replace('()', '').split('.').reduce((each, name) => each?.[name], object);
  return path.endsWith('()') ? typeof value === 'function' : value !== undefined;
}

module.exports = { missingIn };
