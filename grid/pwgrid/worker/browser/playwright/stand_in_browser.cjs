// A program: answers on its pipe (descriptors 3 and 4) as much as Playwright asks of a Chromium that opens an empty page, for
// check_driver.cjs. It shows nothing and runs no script.
'use strict';

const fs = require('node:fs');

const CONTEXT = 'C1', PAGE = 'T1', SESSION = 'S1', LOADER = 'L1';
const VERSION = { protocolVersion: '1.3', product: 'HeadlessChrome/156.0.0.0', revision: '@1', userAgent: 'HeadlessChrome/156.0.0.0', jsVersion: '15.6' };
const FRAME = { id: PAGE, loaderId: LOADER, url: 'about:blank', domainAndRegistry: '', securityOrigin: '://', mimeType: 'text/html', secureContextType: 'InsecureScheme', crossOriginIsolatedContextType: 'NotIsolated', gatedAPIFeatures: [] };
const TARGET = { targetId: PAGE, type: 'page', title: '', url: 'about:blank', attached: true, canAccessOpener: false, browserContextId: CONTEXT };

const output = fs.createWriteStream(null, { fd: 4 });
let sessions = 0;

function say(message) {
  output.write(JSON.stringify(message) + '\0');
}

function worldOf(id, name, isDefault, sessionId) {
  const auxData = { isDefault, type: isDefault ? 'default' : 'isolated', frameId: PAGE };
  say({ method: 'Runtime.executionContextCreated', sessionId, params: { context: { id, origin: '://', name, uniqueId: String(id), auxData } } });
}

function resultOf({ method, params, sessionId }) {
  switch (method) {
    case 'Browser.getVersion':
      return VERSION;
    case 'Target.createBrowserContext':
      return { browserContextId: CONTEXT };
    case 'Target.createTarget':
      say({ method: 'Target.attachedToTarget', params: { sessionId: SESSION, targetInfo: TARGET, waitingForDebugger: true } });
      return { targetId: PAGE };
    case 'Target.attachToTarget':
    case 'Target.attachToBrowserTarget':
      return { sessionId: `A${++sessions}` };
    case 'Page.getFrameTree':
      return { frameTree: { frame: FRAME } };
    case 'Runtime.enable':
      worldOf(1, '', true, sessionId);
      return {};
    case 'Page.createIsolatedWorld':
      worldOf(2, params.worldName, false, sessionId);
      return { executionContextId: 2 };
    case 'Page.addScriptToEvaluateOnNewDocument':
      return { identifier: '1' };
    default:
      return {};
  }
}

let unread = '';
const input = fs.createReadStream(null, { fd: 3, encoding: 'utf8' });
input.on('data', text => {
  const messages = (unread + text).split('\0');
  unread = messages.pop();
  for (const message of messages.map(each => JSON.parse(each))) {
    const { id, method, sessionId } = message;
    say({ id, result: resultOf(message), sessionId });
    if (method === 'Target.closeTarget' || method === 'Target.disposeBrowserContext')
      say({ method: 'Target.detachedFromTarget', params: { sessionId: SESSION, targetId: PAGE } });
    if (method === 'Browser.close')
      process.exit(0);
  }
});
input.on('end', () => process.exit(0));
