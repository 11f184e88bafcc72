// Reads a CDP client's message: its id, method and sessionId, and its parameters where somebody asks for them.
//
// What is read here is judged here, and read again by the browser. So nothing passes that the two may read differently: the browser's
// parser takes comments, for one, and its pipe ends a message at a zero byte. A small message is parsed and written anew. A
// larger one may have 100 MiB of text: of that just the envelope is read, and its bytes are passed on.
'use strict';

const { MOST_VALUES } = require('../guard/message_bounds.cjs');

// A message of fewer bytes is parsed, and written anew: that takes half as long as to go through it here, byte by byte. It cannot be
// deeper than MOST_DEPTH.
const PARSED_BYTES = 512;
const MOST_ID = 9_999_999_999;
const NAMES = new Set(['id', 'method', 'params', 'sessionId']);
const MOST_NAME_BYTES = 200; // of a method's name or a session's id
const MOST_DEPTH = 300; // the browser's parser takes no more than that
const MOST_STEPS = 8 * 1024 * 1024; // texts, and bytes outside of texts: what takes long to read
const WINDOW_BYTES = 256; // that are read one by one where a text has quotes of its own

const QUOTE = 0x22, BACKSLASH = 0x5c, COMMA = 0x2c, COLON = 0x3a;
const OPEN_BRACE = 0x7b, CLOSE_BRACE = 0x7d, OPEN_BRACKET = 0x5b, CLOSE_BRACKET = 0x5d;

// What may stand outside of texts, besides the above: blanks, and what numbers, true, false and null are made of.
const PLAIN = new Uint8Array(256);
for (const each of ' \t\r\n0123456789+-.eEtrufalsn')
  PLAIN[each.charCodeAt(0)] = 1;

const AS_IT_IS = /^[\w.]*$/; // a text that JSON says without escapes

class Unreadable extends Error {}

// Returns a ParsedMessage or an UnparsedMessage. Throws Unreadable, with the id if it is known by then.
function readMessage(data) {
  return data.length < PARSED_BYTES && parsed(data) || new UnparsedMessage(data, readEnvelope(data));
}

// Null if anything is unusual about it: readEnvelope says what.
function parsed(data) {
  let message;
  try {
    message = JSON.parse(data.toString());
  } catch {
    return null;
  }
  if (typeof message !== 'object' || message === null)
    return null;
  for (const name in message) {
    if (!NAMES.has(name))
      return null;
  }
  const { id, method, params = null, sessionId = '' } = message;
  const isUsual = Number.isInteger(id) && Math.abs(id) <= MOST_ID && method && typeof method === 'string' && typeof sessionId === 'string'
    && typeof params === 'object' && !Array.isArray(params);
  return isUsual ? new ParsedMessage(id, method, params, sessionId) : null;
}

class ParsedMessage {
  constructor(id, method, params, sessionId) {
    this.id = id;
    this.method = method;
    this.params = params;
    this.sessionId = sessionId; // '' for none
  }

  // What the browser is to read, in pieces (texts or Buffers); on the root session of this connection if it names none.
  forBrowser({ rootId }) {
    const { id, method, params, sessionId } = this;
    return [JSON.stringify({ id, method, params: params ?? undefined, sessionId: sessionId || rootId })];
  }
}

class UnparsedMessage {
  constructor(data, { id, method, sessionId, params, end }) {
    this.data = data;
    this.id = Number(id);
    this.method = method;
    this.sessionId = sessionId;
    this.found = params;
    this.end = end;
  }

  // Throws Unreadable: the envelope has told what stands between texts, and not what it means.
  get params() {
    try {
      return this.found && JSON.parse(this.data.toString('utf8', ...this.found));
    } catch {
      throw new Unreadable('its params are no JSON');
    }
  }

  forBrowser({ tail }) {
    return this.sessionId ? [this.data] : [this.data.subarray(0, this.end), tail];
  }
}

// Returns { id (as text), method, sessionId ('' for none), params: [from, to] or null, end: where the last brace stands }. Throws Unreadable,
// with the id if it is known by then.
function readEnvelope(data) {
  const found = { id: '', method: '', sessionId: '', params: null, end: 0 };
  try {
    readInto(found, data);
  } catch (error) {
    error.id = found.id;
    throw error;
  }
  return found;
}

function readInto(found, data) {
  if (data.indexOf(0) >= 0)
    throw new Unreadable('it has a zero byte');
  let at = afterBlanks(data, 0);
  expect(data, at, OPEN_BRACE);
  const known = [];
  do {
    at = afterBlanks(data, at + 1);
    const nameEnd = endOfText(data, at);
    const name = textOf(data, at, nameEnd);
    if (known.includes(name))
      throw new Unreadable(`it has ${JSON.stringify(name)} twice`);
    known.push(name);
    at = afterBlanks(data, nameEnd);
    expect(data, at, COLON);
    const start = afterBlanks(data, at + 1);
    at = endOfValue(data, start);
    take(found, name, data, start, at);
    at = afterBlanks(data, at);
  } while (data[at] === COMMA);
  expect(data, at, CLOSE_BRACE);
  if (afterBlanks(data, at + 1) !== data.length)
    throw new Unreadable('something stands behind it');
  found.end = at;
  if (!found.id || !found.method)
    throw new Unreadable('it has no id, or no method');
}

function take(found, name, data, start, end) {
  if (name === 'id') {
    const text = data.latin1Slice(start, Math.min(end, start + MOST_NAME_BYTES)).trim();
    if (!/^-?\d{1,10}$/.test(text))
      throw new Unreadable('its id is no integer');
    found.id = text;
  } else if (name === 'method') {
    found.method = textOf(data, start, end);
  } else if (name === 'sessionId') {
    found.sessionId = textOf(data, start, end);
  } else if (name === 'params') {
    if (data.toString('latin1', start, start + 4) === 'null')
      return;
    expect(data, start, OPEN_BRACE);
    found.params = [start, end];
  } else {
    throw new Unreadable('it has something else than id, method, params and sessionId');
  }
}

function expect(data, at, code) {
  if (data[at] !== code)
    throw new Unreadable(`${String.fromCharCode(code)} is missing at byte ${at}`);
}

function afterBlanks(data, at) {
  while (data[at] === 0x20 || data[at] === 0x0a || data[at] === 0x0d || data[at] === 0x09)
    at++;
  return at;
}

// The text that is in quotes there.
function textOf(data, start, end) {
  expect(data, start, QUOTE);
  if (end - start > MOST_NAME_BYTES)
    throw new Unreadable('a name in it is too long');
  const text = data.latin1Slice(start + 1, end - 1);
  if (data[end - 1] === QUOTE && AS_IT_IS.test(text))
    return text;
  try {
    return JSON.parse(data.toString('utf8', start, end));
  } catch {
    throw new Unreadable(`no text stands at byte ${start}`);
  }
}

// Behind the quote that ends the text which begins there.
function endOfText(data, start) {
  expect(data, start, QUOTE);
  for (let at = start + 1; at < data.length;) {
    for (const until = at + WINDOW_BYTES; at < until; at++) {
      if (data[at] === QUOTE)
        return at + 1;
      if (data[at] === BACKSLASH)
        at++;
    }
    const quote = data.indexOf(QUOTE, at); // fast where quotes are rare, and slow where each byte is one
    if (quote < 0)
      break;
    let slashes = 0;
    while (quote - 1 - slashes >= at && data[quote - 1 - slashes] === BACKSLASH)
      slashes++;
    if (slashes % 2 === 0)
      return quote + 1;
    at = quote + 1;
  }
  throw new Unreadable('a text in it has no end');
}

// Where this value ends: at the comma or the brace that is not in it.
function endOfValue(data, start) {
  const open = []; // braces and brackets that close it
  let values = 0, steps = 0;
  for (let at = start; at < data.length; at++) {
    const code = data[at];
    if (++steps > MOST_STEPS)
      throw new Unreadable(`it has more than ${MOST_STEPS} texts, and bytes that are in none`);
    if (code === COMMA && ++values > MOST_VALUES)
      throw new Unreadable(`it has more than ${MOST_VALUES} values`);
    if (code === QUOTE) {
      at = endOfText(data, at) - 1;
    } else if (code === OPEN_BRACE || code === OPEN_BRACKET) {
      open.push(code === OPEN_BRACE ? CLOSE_BRACE : CLOSE_BRACKET);
      if (open.length > MOST_DEPTH)
        throw new Unreadable('it is too deep');
    } else if (!open.length && (code === COMMA || code === CLOSE_BRACE)) {
      return at;
    } else if (code === CLOSE_BRACE || code === CLOSE_BRACKET) {
      if (open.pop() !== code)
        throw new Unreadable(`a bracket does not fit at byte ${at}`);
    } else if (!(PLAIN[code] || open.length && (code === COMMA || code === COLON))) {
      throw new Unreadable(`it is no JSON at byte ${at}`);
    }
  }
  throw new Unreadable('it has no end');
}

module.exports = { ParsedMessage, readMessage, Unreadable };
