// A program: answers as much as Playwright asks of a browser that is launched and opens an empty page, for look_at_driver.cjs. It shows
// nothing and runs no script. Its arguments are the driver's directory, and those that Playwright gives the browser: by them it is a
// Chromium, a Firefox or WebKit of Playwright's own, each on its pipe (descriptors 3 and 4), or a stock Firefox over WebDriver BiDi.
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const LIMIT_MS = 70_000; // in case that nobody ends it
const PAGE = 'T1', SESSION = 'S1', LOADER = 'L1', STREAM = 'R1';
const VERSION = { protocolVersion: '1.3', product: 'HeadlessChrome/156.0.0.0', revision: '@1', userAgent: 'HeadlessChrome/156.0.0.0', jsVersion: '15.6' };
const FIREFOX = { version: 'Firefox/153.0', userAgent: 'Firefox/153.0' };
const FRAME = { id: PAGE, loaderId: LOADER, url: 'about:blank', domainAndRegistry: '', securityOrigin: '://', mimeType: 'text/html', secureContextType: 'InsecureScheme', crossOriginIsolatedContextType: 'NotIsolated', gatedAPIFeatures: [] };
const TARGET = { targetId: PAGE, type: 'page', title: '', url: 'about:blank', attached: true, canAccessOpener: false };

const [core, ...given] = process.argv.slice(2);
let sessions = 0;
let contexts = 0;

// ------------------------------------------------------------------------------------------------------------- on a pipe

function answerOnPipe() {
  const output = fs.createWriteStream(null, { fd: 4 });
  const input = fs.createReadStream(null, { fd: 3, encoding: 'utf8' });
  const say = message => output.write(JSON.stringify(message) + '\0');
  let unread = '';
  input.on('data', text => {
    const messages = (unread + text).split('\0');
    unread = messages.pop();
    for (const message of messages.map(each => JSON.parse(each))) {
      const { id, method, sessionId } = message;
      say({ id, result: resultOf(message, say), sessionId });
      if (method === 'Target.closeTarget' || method === 'Target.disposeBrowserContext')
        say({ method: 'Target.detachedFromTarget', params: { sessionId: SESSION, targetId: PAGE } });
      if (method === 'Browser.close' || method === 'Playwright.close')
        process.exit(0);
    }
  });
  input.on('end', () => process.exit(0));
}

// For a method that is not here an empty result will do.
function resultOf({ method, params, sessionId }, say) {
  const worldOf = (id, name, isDefault) => {
    const auxData = { isDefault, type: isDefault ? 'default' : 'isolated', frameId: PAGE };
    say({ method: 'Runtime.executionContextCreated', sessionId, params: { context: { id, origin: '://', name, uniqueId: String(id), auxData } } });
  };
  switch (method) {
    case 'Browser.getInfo': // of Playwright's own Firefox
      return FIREFOX;
    case 'Browser.getVersion':
      return VERSION;
    case 'Target.createBrowserContext':
      return { browserContextId: `C${++contexts}` };
    case 'Target.createTarget': {
      const targetInfo = { ...TARGET, browserContextId: params.browserContextId };
      say({ method: 'Target.attachedToTarget', params: { sessionId: SESSION, targetInfo, waitingForDebugger: true } });
      return { targetId: PAGE };
    }
    case 'Target.attachToTarget':
    case 'Target.attachToBrowserTarget':
      return { sessionId: `A${++sessions}` };
    case 'Page.getFrameTree':
      return { frameTree: { frame: FRAME } };
    case 'Runtime.enable':
      worldOf(1, '', true);
      return {};
    case 'Page.createIsolatedWorld':
      worldOf(2, params.worldName, false);
      return { executionContextId: 2 };
    case 'Page.addScriptToEvaluateOnNewDocument':
      return { identifier: '1' };
    case 'Tracing.end':
      say({ method: 'Tracing.tracingComplete', params: { stream: STREAM, dataLossOccurred: false } });
      return {};
    case 'IO.read':
      return { data: '', eof: true };
    default:
      return {};
  }
}

// ------------------------------------------------------------------------------------------------- over WebDriver BiDi

function answerOverBidi() {
  const { wsServer: WebSocketServer } = require(path.join(core, 'lib', 'utilsBundle'));
  const server = http.createServer();
  new WebSocketServer({ server }).on('connection', ws => {
    const say = message => ws.send(JSON.stringify(message));
    ws.on('message', data => {
      const message = JSON.parse(data);
      say({ type: 'success', id: message.id, result: bidiResultOf(message, say) });
      if (message.method === 'browser.close')
        process.exit(0);
    });
    ws.on('close', () => process.exit(0));
  });
  server.listen(0, '127.0.0.1', () => console.error(`WebDriver BiDi listening on ws://127.0.0.1:${server.address().port}`));
}

function bidiResultOf({ method, params }, say) {
  switch (method) {
    case 'session.new':
      return { sessionId: SESSION, capabilities: { browserName: 'firefox', browserVersion: '153.0', userAgent: FIREFOX.userAgent } };
    case 'browser.createUserContext':
      return { userContext: `C${++contexts}` };
    case 'browsingContext.create': {
      const { userContext } = params;
      const made = { context: PAGE, userContext, url: 'about:blank', parent: null, children: null, originalOpener: null, clientWindow: 'W1' };
      say({ type: 'event', method: 'browsingContext.contextCreated', params: made });
      return { context: PAGE };
    }
    case 'network.addDataCollector':
      return { collector: 'D1' };
    case 'network.addIntercept':
      return { intercept: 'I1' };
    case 'script.addPreloadScript':
      return { script: 'P1' };
    default:
      return {};
  }
}

// ------------------------------------------------------------------------------------------------------------------------

setTimeout(() => process.exit(0), LIMIT_MS).unref();
if (given.includes('--remote-debugging-port=0')) {
  answerOverBidi();
} else {
  answerOnPipe();
  if (given.includes('-juggler-pipe'))
    console.error('Juggler listening to the pipe');
}
