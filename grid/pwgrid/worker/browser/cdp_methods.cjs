// What a CDP client may ask of its own browser: a table of the methods whose parameters are looked at. A browser of one's own is not the
// host: what names files of the host is turned into the session's directory or refused. All other methods pass unread; that none of them
// names a file, a URL that is loaded, or a port, is tried with the browser's own list of methods (tests/hostile/test_cdp_methods.py).
'use strict';

const { ENDS_THE_SESSION, judgeCommand } = require('./message_guard.cjs');

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

function guarded(method, params, client) {
  const refusal = judgeCommand(method, params, client);
  return refusal ? { refusal } : params;
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

function objectOf(value) {
  return typeof value === 'object' && value !== null ? value : {};
}

module.exports = { READ, ENDS_THE_SESSION, isRead, judgeRead };
