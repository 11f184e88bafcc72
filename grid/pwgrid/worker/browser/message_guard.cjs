// What a connected client may ask of Playwright's server: rules by the name of the message, and for commands of CDP, which also clients of
// CDP send (cdp_methods.cjs), by the name of the command.
//
// `compatible` refuses what no official client sends to a remote browser; a client that asks to end a shared browser only
// ends its own session. `strict` also refuses what reads or disturbs other clients. `off` refuses only what BLOCK_FILE_URLS
// forbids and what nothing allows. What Playwright's server refuses by itself (to launch or connect to another browser,
// Android, Electron, requests without a context) is no rule here; tests/hostile has the table of all messages.
'use strict';

const path = require('node:path');

const ENDS_THE_SESSION = 'ends the session'; // a verdict; any other is the sentence of a refusal, or null
const CALL_ID = /^[\w@:-]{1,64}$/; // names files of a context's trace, so it must be no path

const OFF = 'CLIENT_GUARD=off allows it';
const UNSHARED = 'CLIENT_GUARD=compatible or MAX_CONCURRENT_SESSIONS=1 allows it';
const OFF_OR_UNSHARED = 'CLIENT_GUARD=off or MAX_CONCURRENT_SESSIONS=1 allows it';
const FILE_URLS = 'BLOCK_FILE_URLS=false allows it';
const NOTHING = 'nothing allows it';
const NO_PORT = 'this grid lets no client open a port or socket on its host';

// A rule gets the parameters and the client: { guard, isShared, blocksFileUrls, ownsTracing }, with `isBrowserLevel` and
// `loopbackPorts` (numbers) for a CDP session. It returns [why not, what would allow it], ENDS_THE_SESSION, or null.
const RULES = new Map([
  ['showRecorder', recorder],
  ['enableRecorder', recorder], // its name until 1.63
  ['agent', (_, client) => atMost('off', client, 'it reads and writes files of the host')], // of 1.58
  ['devices', () => ['it reaches devices of the host', NOTHING]], // 1.60 and later refuse these two themselves
  ['newRequest', () => ['requests are those of a context', NOTHING]],
  ['saveAs', (_, client) => atMost('off', client, 'it writes a file of the host, and saveAsStream sends it to the client')],
  ['pathAfterFinished', (_, client) => atMost('off', client, 'it tells a path of the host, and saveAsStream sends the file')],
  ['startServer', () => [NO_PORT, NOTHING]],
  ['tracingStart', named],
  ['tracingStartChunk', named],
  ['tracingStopChunk', archived],
  ['harExport', archived],
  ['newContext', downloads],
  ['newContextForReuse', downloads],
  ['setInputFiles', upload],
  ['drop', upload],
  ['redirectNavigationRequest', ({ url }, client) => navigation(url, client)], // its own call would get no answer otherwise
  ['newBrowserCDPSession', (_, client) => atMost('compatible', client, 'it sees and ends the sessions of others')],
  ['startTracing', (_, client) => atMost('compatible', client, 'it records the sessions of others')],
  ['stopTracing', (_, client) => client.ownsTracing ? null : ['this session did not start it', NOTHING]],
  ['send', ({ method, params }, client) => cdp(textOf(method), objectOf(params), client)],
]);

// Returns null for a message that may pass, ENDS_THE_SESSION, or the sentence of a refusal.
function judge(type, method, params, client) {
  const rule = RULES.get(method);
  const verdict = rule ? rule(objectOf(params), client) : null;
  return !verdict || verdict === ENDS_THE_SESSION ? verdict : refusal(`${type}.${method}`, verdict);
}

// The same for a navigation that Playwright is about to ask the browser for, whichever message it comes from.
function judgeNavigation(url, client) {
  const verdict = navigation(url, client);
  return verdict && refusal('this navigation', verdict);
}

// The same for a command over CDP; null if it may pass. Whether it ends the session is no matter here.
function judgeCommand(method, params, client) {
  const verdict = cdp(method, params, client);
  if (!verdict || verdict === ENDS_THE_SESSION)
    return null;
  const [why, allowedBy] = verdict;
  return refusal(method, [why.replace(`${method} `, 'it '), allowedBy]);
}

function refusal(what, [why, allowedBy]) {
  return `${what} is refused by the grid: ${why} (${allowedBy})`;
}

// Playwright itself takes any JSON, such as null, or a call whose id is a path.
function isWellFormed(message) {
  return typeof message === 'object' && message !== null && typeof message.guid === 'string'
    && typeof message.method === 'string' && ['string', 'number', 'undefined'].includes(typeof message.id)
    && (message.id === undefined || CALL_ID.test(message.id))
    && (message.method !== '__abort__' || typeof message.params === 'object' && message.params !== null);
}

// Returns the value if it is an object, else an empty one: then Playwright or the browser refuses the message.
function objectOf(value) {
  return typeof value === 'object' && value !== null ? value : {};
}

// The same for a text.
function textOf(value) {
  return typeof value === 'string' ? value : '';
}

// `allowed` is the strictest guard that lets the message pass; for `compatible`, `strict` also does in an unshared browser.
function atMost(allowed, client, why) {
  if (client.guard === 'off' || (allowed === 'compatible' && (client.guard === 'compatible' || !client.isShared)))
    return null;
  return allowed === 'off' ? [why, OFF] : [why, UNSHARED];
}

function recorder(_, client) {
  return atMost('off', client, 'it starts another browser on the host');
}

function named({ name }, client) {
  const isInside = name === undefined || !path.normalize(textOf(name)).split(path.sep).includes('..');
  return isInside ? null : atMost('off', client, 'its name leads out of the directory of the session');
}

function archived({ mode }, client) {
  return mode === 'entries' ? atMost('off', client, 'it tells paths of the host, and an archive goes to the client') : null;
}

function downloads({ acceptDownloads }, client) {
  if (acceptDownloads !== 'internal-browser-default')
    return null;
  return atMost('off', client, 'its downloads go to a directory of the host');
}

function upload({ localPaths, localDirectory }, client) {
  if (localPaths === undefined && localDirectory === undefined)
    return null;
  return atMost('off', client, 'it reads files of the host, and createTempFiles takes those of the client');
}

// Pages of the browser itself (chrome:, devtools:, Firefox's about:) see all others; some URLs of that kind end or block the
// browser, and from one such page a script gets to all of them. So a browser that others share opens none.
const SCHEMES = new Set(['http', 'https', 'data', 'blob', 'filesystem', 'file', 'javascript']);
const PAGES = /^(about:blank|about:srcdoc)([?#]|$)|^chrome:\/\/crash\/?$/i; // the last one ends the renderer of its own page

function navigation(url, client) {
  const target = asTheBrowserReads(url);
  if (client.blocksFileUrls && /^((filesystem|jar|blob):)*file:/i.test(target))
    return ['it reads files of the host', FILE_URLS];
  const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(target)?.[1].toLowerCase(); // undefined: no URL, which the browser refuses
  if (scheme === undefined || SCHEMES.has(scheme) || PAGES.test(target) || !client.isShared || client.guard === 'off')
    return null;
  return ['a browser that others share opens only web pages, files and data', OFF_OR_UNSHARED];
}

// Without what a browser's own parser drops, and without `view-source:`, which shows the page behind it.
function asTheBrowserReads(url) {
  const read = textOf(url).replace(/^[\0-\x20]+|[\t\n\r]+/g, '');
  return /^view-source:/i.test(read) ? asTheBrowserReads(read.slice('view-source:'.length)) : read;
}

// ---------------------------------------------------------------------------------------------------------------- CDP

const ENDS_THE_BROWSER = new Set(['Browser.close', 'Browser.crash', 'Browser.crashGpuProcess']);
// Even on the session of a page these domains reach all pages of the browser, or the browser as a whole.
const OF_THE_WHOLE_BROWSER = new Set(['Browser', 'Extensions', 'PWA', 'SystemInfo', 'Target', 'Tracing']);
const OF_A_PAGE_ALONE = new Set([
  'Browser.getVersion', 'Target.setAutoAttach', 'Target.sendMessageToTarget', 'Target.detachFromTarget',
]);

// Values at which Chromium's own process crashes: tests/hostile/every_cdp_command.py looks for them.
const CRASHES_THE_BROWSER = new Map([
  ['Emulation.setDisplayFeaturesOverride', ({ features }) => !features?.length],
  ['Input.imeSetComposition', ({ replacementStart, replacementEnd }) => replacementStart < 0 || replacementEnd < 0],
]);

function cdp(method, params, client) {
  if (ENDS_THE_BROWSER.has(method) && client.isShared && client.guard !== 'off')
    return ENDS_THE_SESSION;
  return (method === 'Tethering.bind' ? [NO_PORT, NOTHING] : null)
    || onHost(reachesHost(method, params), client)
    || navigated(method, params, client)
    || proxied(textOf(params.proxyServer), client)
    || crashes(method, params, client)
    || reachesOthers(method, params, client)
    || tunnelled(method, params, client);
}

function reachesHost(method, { downloadPath, files, data, path: directory }) {
  if (method === 'Target.exposeDevToolsProtocol')
    return `${method} lets a page reach files of the host, and all of the browser`;
  if (method === 'Target.setRemoteLocations')
    return `${method} reaches other browsers of the host`;
  if (method.endsWith('.setDownloadBehavior') && downloadPath !== undefined)
    return `${method} with downloadPath writes files of the host`;
  if (files !== undefined || data?.files?.length || (method.startsWith('Extensions.') && directory !== undefined))
    return `${method} reads files of the host`;
  return '';
}

// Breakpoints have any URL.
function navigated(method, { url, installUrlOrBundleUrl = url }, client) {
  return installUrlOrBundleUrl === undefined || method.startsWith('Debugger.') ? null : navigation(installUrlOrBundleUrl, client);
}

function onHost(why, client) {
  return why && (atMost('off', client, why) ?? (client.blocksFileUrls ? [why, FILE_URLS] : null));
}

function reachesOthers(method, params, client) {
  const domain = method.split('.', 1)[0];
  if (client.isBrowserLevel || OF_A_PAGE_ALONE.has(method))
    return null;
  if (OF_THE_WHOLE_BROWSER.has(domain) || params.browserContextId !== undefined)
    return atMost('compatible', client, `${method} is about the whole browser, and others share it`);
  return null;
}

function crashes(method, params, client) {
  if (!client.isShared || client.guard === 'off' || !CRASHES_THE_BROWSER.get(method)?.(params))
    return null;
  return [`with these values ${method} crashes the browser, and others share it`, OFF_OR_UNSHARED];
}

// A context with a proxy; Playwright's own are judged in loopback_ports.cjs.
function proxied(proxyServer, client) {
  const named = (proxyServer.match(/\d+/g) ?? []).some(number => client.loopbackPorts.includes(Number(number)));
  return named ? ['its proxy serves one session alone', NOTHING] : null;
}

// A CDP session without `flatten` carries messages of another one as text, which may carry those of a third.
function tunnelled(method, { message }, client) {
  if (method !== 'Target.sendMessageToTarget')
    return null;
  let inner;
  try {
    inner = objectOf(JSON.parse(textOf(message)));
  } catch {
    return onHost(`${method} with a text that is not JSON`, client); // Chromium's own parser takes more, comments for one
  }
  return cdp(textOf(inner.method), objectOf(inner.params), client);
}

module.exports = { judge, judgeCommand, judgeNavigation, isWellFormed, ENDS_THE_SESSION, RULES };
