// What the rules of the guard have in common (playwright_messages.cjs, cdp_methods.cjs): their verdicts, what allows what they refuse, and which
// URLs a browser may open.
'use strict';

const ENDS_THE_SESSION = 'ends the session'; // a verdict; any other is the sentence of a refusal, or null

const OFF = 'CLIENT_GUARD=off allows it';
const UNSHARED = 'CLIENT_GUARD=compatible or MAX_CONCURRENT_SESSIONS=1 allows it';
const OFF_OR_UNSHARED = 'CLIENT_GUARD=off or MAX_CONCURRENT_SESSIONS=1 allows it';
const FILE_URLS = 'BLOCK_FILE_URLS=false allows it';
const NOTHING = 'nothing allows it';
const NO_PORT = 'this grid lets no client open a port or socket on its host';

function refusal(what, [why, allowedBy]) {
  return `${what} is refused by the grid: ${why} (${allowedBy})`;
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

module.exports = {
  ENDS_THE_SESSION, FILE_URLS, NOTHING, NO_PORT, OFF_OR_UNSHARED, atMost, navigation, objectOf, refusal, textOf,
};
