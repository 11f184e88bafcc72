// What the browser server uses of the private objects of Playwright and of `ws` in it, by the object: a driver without one of these is not
// known here, and check_driver.cjs says so. Each private name in a .cjs file is to be here, which tests/unit/test_driver_needs.py checks.
//
// A name ends with () if it is to be a function, with ? if it may be undefined. Of `a|b` one is enough: an adapter beside this file takes
// either. `!a|b`: `b` is needed where there is an `a`.
'use strict';

const ANY_BROWSER = 'on() off() listeners() contexts() isConnected() options.browserProcess.process options.browserLogsCollector.recentLogs() '
  + 'options.artifactsDir options.tracesDir options.downloadsPath options.proxy? options.browserType|options.name '
  + 'downloadCreated()|_downloadCreated() newContext() doCreateNewContext() newContextForReuse() contextForReuse() '
  + '_contexts.get() _connection._transport';
const PIPE = '_pipeRead.on() _pipeRead.removeAllListeners() _pipeRead.pause() _pipeRead.resume() _pipeWrite.write() _pipeWrite.once() '
  + '_pendingBuffers onmessage()';
const COMMAND = 'error.method error.type';
const CDP_SESSION = '_session.on() _session.send() _session._sendMayFail() _session._sessionId _session._parentSession._sendMayFail()';

const NEEDS = {
  driver: 'playwright._connection.toImpl() PlaywrightServer() SocksProxy() WebSocketServer() WebSocket() connection.onmessage()',
  PlaywrightServer: 'prototype.listen() prototype._initPreLaunchedBrowserMode()',
  SocksProxy: 'prototype.setPattern() prototype.listen() prototype.close()',
  socksProxy: '_server.listen()',
  server: '_options.preLaunchedBrowser',
  webSocket: '_isServer _autoPong _closeFrameReceived _receiver._bufferedBytes _receiver._buffers.length _receiver._fragments.length '
    + '_socket._handle.bytesWritten _socket._handle.writeQueueSize bufferedAmount ping() pong() pause() resume() close() terminate()',
  connection: '_dispatcherByGuid.get() _dispatcherByGuid.values() registerDispatcher() dispatch() onmessage()',
  Root: '_type',
  Browser: '_type _guid _object _isolatedContexts.add() newContextForReuse()',
  browser: `${ANY_BROWSER} options.sdkLanguage newBrowserCDPSession() startTracing() stopTracing() `
    + '_tracingRecording _session.send() _session.on() _session.off() _session.createChildSession() '
    + '_clientRootSession() _connection._sessions.get()',
  transport: PIPE,
  session: '_callbacks.get() _callbacks.values() _sendMayFail() _sessionId dispose()',
  command: COMMAND,
  rootSession: 'attachToTarget()',
  attached: CDP_SESSION,
  viewed: CDP_SESSION,
  ofBrowser: '_session._sessionId',
  context: 'once() close() doClose() _options _browserContextId newCDPSession() possiblyUninitializedPages() _didCloseInternal() '
    + '_deleteAllDownloads() _deleteAllTempDirs()',
  contextOptions: 'proxyOverride.server recordVideo.dir?',
  contextOfOptions: '_options.recordVideo',
  reused: 'context._object',
  browserOfReused: '_contextForReuse',
  page: 'isClosed() mainFrame() browserContext initializedOrUndefined() delegate.navigateFrame() screenshotter.screenshotPage() '
    + 'screenshotter.screenshotElement() !screencast.addClient()|screencast._clients.size !screencast.addClient()|screencast.removeClient()',
  frame: 'url() _page.browserContext',
  Page: '_type _guid _parent._type _object.delegate _object.screenshotter expectScreenshot() '
    + 'connection._activeProgressControllers.size|_activeProgressControllers.size',
  Playwright: '_type cleanup()',
  SocksSupport: '_type',
  APIRequestContext: '_object.fetchResponses.set() _object.fetchResponses.delete() _object.fetchResponses.clear()',
  CDPSession: '_type _parent._type send() _object._session.send()',
  Stream: '_object.stream.destroy()',
  WritableStream: '_object.streamOrDirectory.destroy()',
  stockFirefox: `${ANY_BROWSER} _browserSession.send() _connection.browserSession._callbacks.get() `
    + '_connection._browsingContextToSession.values() _bidiPages.get() _bidiPages.values()',
  stockFirefoxTransport: '_ws._receiver._maxPayload _ws._socket.on() _ws.emit() onmessage()',
  stockFirefoxCommand: COMMAND,
  stockFirefoxPage: '_browserContext !_page.screencast.addClient()|startScreencast()',
  firefox: `${ANY_BROWSER} session.send() session._callbacks.get() _connection._sessions.get()`,
  firefoxTransport: PIPE,
  firefoxCommand: COMMAND,
  webkit: `${ANY_BROWSER} _browserSession.send() _connection.browserSession._callbacks.get()`,
  webkitTransport: PIPE,
  webkitCommand: COMMAND,
};

// Returns what `objects` (by the names above) have not, as sentences' words; of those with these `names` alone.
function missingIn(objects, names = Object.keys(NEEDS)) {
  const missing = [];
  for (const name of names.filter(each => NEEDS[each])) {
    for (const need of NEEDS[name].split(' ')) {
      if (!need.split('|').some(each => has(objects[name], each)))
        missing.push(`${name}.${inWords(need)}`);
    }
  }
  return missing;
}

function inWords(need) {
  return need.split('|').filter(each => !each.startsWith('!')).join('|').replace('?', '');
}

function has(object, need) {
  if (need.startsWith('!'))
    return !has(object, need.slice(1));
  const names = need.replace(/\(\)$|\?$/, '').split('.');
  const last = names.pop();
  const owner = names.reduce((each, name) => each?.[name], object);
  if (need.endsWith('?'))
    return last in Object(owner);
  const value = owner?.[last];
  return need.endsWith('()') ? typeof value === 'function' : value !== undefined;
}

module.exports = { missingIn };
