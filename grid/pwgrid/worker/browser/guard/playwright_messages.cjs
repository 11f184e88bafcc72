// What a connected client may ask of Playwright's server: rules by the name of the message. Commands of CDP have rules of their own
// (cdp_methods.cjs).
//
// `compatible` refuses what no official client sends to a remote browser; a client that asks to end a shared browser only
// ends its own session. `strict` also refuses what reads or disturbs other clients. `off` refuses only what BLOCK_FILE_URLS
// forbids and what nothing allows. What Playwright's server refuses by itself (to launch or connect to another browser,
// Android, Electron, requests without a context) is no rule here; tests/hostile has the table of all messages.
'use strict';

const path = require('node:path');

const { judgeCdp } = require('./cdp_methods.cjs');
const { ENDS_THE_SESSION, NO_PORT, NOTHING, atMost, navigation, objectOf, refusal, textOf } = require('./guard_verdicts.cjs');

const CALL_ID = /^[\w@:-]{1,64}$/; // names files of a context's trace, so it must be no path

// A rule gets the parameters and the client: { guard, isShared, blocksFileUrls, ownsTracing }, with what cdp_methods.cjs reads for a CDP
// session. It returns [why not, what would allow it], ENDS_THE_SESSION, or null.
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
  ['createTempFiles', uploaded],
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
  ['send', ({ method, params }, client) => judgeCdp(textOf(method), objectOf(params), client)],
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

// Playwright itself takes any JSON, such as null, or a call whose id is a path.
function isWellFormed(message) {
  return typeof message === 'object' && message !== null && typeof message.guid === 'string'
    && typeof message.method === 'string' && ['string', 'number', 'undefined'].includes(typeof message.id)
    && (message.id === undefined || CALL_ID.test(message.id))
    && (message.method !== '__abort__' || typeof message.params === 'object' && message.params !== null);
}

function recorder(_, client) {
  return atMost('off', client, 'it starts another browser on the host');
}

function named({ name }, client) {
  return staysInside(name) ? null : atMost('off', client, 'its name leads out of the directory of the session');
}

// Drivers before 1.61 do not look at the names of files.
function uploaded({ items }, client) {
  const isInside = !Array.isArray(items) || items.every(each => staysInside(objectOf(each).name));
  return isInside ? null : atMost('off', client, 'the name of a file leads out of the directory of the session');
}

function staysInside(name) {
  return !path.normalize(textOf(name)).split(path.sep).includes('..');
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

module.exports = { judge, judgeNavigation, isWellFormed, ENDS_THE_SESSION, RULES };
