// What may be asked of the browser by commands of CDP: rules by the names of methods and parameters (`judgeCdp`), for the CDP sessions that
// a client of Playwright has, and for clients of CDP.
//
// Of a CDP client only those methods are read that are in a table (READ): what names files of the host is turned into the session's
// directory or refused. All others pass unread; that none of them names a file, a URL that is loaded, or a port, is tried with the browser's
// own list of methods (tests/hostile/test_cdp_methods.py).
'use strict';

const {
  ENDS_THE_SESSION, FILE_URLS, NOTHING, NO_PORT, OFF_OR_UNSHARED, atMost, navigation, objectOf, refusal, textOf,
} = require('./guard_verdicts.cjs');

const READ = new Map([
  ['Browser.close', () => ENDS_THE_SESSION],
  ['Browser.setDownloadBehavior', intoDirectory],
  ['Page.setDownloadBehavior', intoDirectory],
  ['Target.sendMessageToTarget', inner],
  // files of the host
  ['DOM.setFileInputFiles', guarded],
  ['Extensions.loadUnpacked', guarded],
  ['Input.dispatchDragEvent', guarded],
  ['PWA.launchFilesInApp', guarded],
  ['Target.exposeDevToolsProtocol', guarded],
  // URLs that are loaded
  ['Fetch.continueRequest', guarded],
  ['Network.loadNetworkResource', guarded],
  ['PWA.install', guarded],
  ['PWA.launch', guarded],
  ['Page.navigate', guarded],
  ['Target.createTarget', guarded],
  // ports and addresses
  ['Target.createBrowserContext', guarded],
  ['Target.setRemoteLocations', guarded],
  ['Tethering.bind', guarded],
]);

// Whether the parameters of this method are to be read.
function isRead(method) {
  return READ.has(method);
}

// Returns the parameters that the browser is to get, ENDS_THE_SESSION, or { refusal: the sentence }. `client`: { guard, isShared,
// blocksFileUrls, loopbackPorts, directory (of the session's files) }.
function judgeRead(method, params, client) {
  return READ.get(method)(method, params, client);
}

// Whether such a command ends the session is no matter here.
function guarded(method, params, client) {
  const verdict = judgeCdp(method, params, client);
  if (!verdict || verdict === ENDS_THE_SESSION)
    return params;
  const [why, allowedBy] = verdict;
  return { refusal: refusal(method, [why.replace(`${method} `, 'it '), allowedBy]) };
}

// Downloads go where the files of the session are, whatever directory the client has on its own host. That is also what is the default
// here; Chromium's own would be a directory of the grid's user.
function intoDirectory(_method, params, { guard, directory }) {
  if (guard === 'off' || params.behavior === 'deny' && params.downloadPath === undefined)
    return params;
  return { ...params, behavior: params.behavior === 'default' ? 'allow' : params.behavior, downloadPath: directory };
}

// A message in a message, as clients sent it before sessions had ids. It is passed on as it was read.
function inner(method, params, client) {
  let message;
  try {
    message = JSON.parse(params.message);
  } catch {
    return { refusal: `${method} is refused by the grid: its message is no JSON (nothing allows it)` };
  }
  if (typeof message !== 'object' || message === null || !isRead(message.method))
    return { ...params, message: JSON.stringify(message) };
  const judged = judgeRead(message.method, objectOf(message.params), client);
  if (judged === ENDS_THE_SESSION || judged.refusal)
    return judged;
  return { ...params, message: JSON.stringify({ ...message, params: judged }) };
}

// --------------------------------------------------------------------------------------------------- the rules themselves

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

// Returns [why not, what would allow it], ENDS_THE_SESSION, or null. `client`: { guard, isShared, blocksFileUrls, isBrowserLevel,
// loopbackPorts (numbers) }.
function judgeCdp(method, params, client) {
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
  return judgeCdp(textOf(inner.method), objectOf(inner.params), client);
}

module.exports = { READ, ENDS_THE_SESSION, isRead, judgeCdp, judgeRead };
