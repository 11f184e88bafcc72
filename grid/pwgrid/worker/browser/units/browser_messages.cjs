// What one browser says, between its pipe (or WebSocket) and Playwright, or a CDP client that it is for.
//
// Playwright's own transport makes a string of each message. One that is longer than a string may be throws there, and that
// transport stays broken for all clients of the browser. Here a message that is too long is dropped whole: an answer becomes an
// error for the one who asked, an event is lost. What is no JSON at all means that nothing the browser says can be told apart
// any more.
'use strict';

const { COUNTED_FROM_BYTES, MOST_VALUES, MOST_VALUES_OF_BROWSER, tooManyValuesIn } = require('../guard/message_bounds.cjs');
const { commandOf } = require('../playwright/browsers.cjs');
const { takeAnySize } = require('../playwright/web_sockets.cjs');

const MIB = 1024 * 1024;
const ENDS_BYTES = 1024; // of a message that is dropped: its id and its session are in its first or last bytes
const END_OF_MESSAGE = 0;

// Splits what comes out of a pipe. Calls `onMessage` with each message (a Buffer), and for one of more than `mostBytes` `onTooLong` with
// its first and last bytes and its size.
class PipeMessages {
  constructor(mostBytes, onMessage, onTooLong) {
    this.mostBytes = mostBytes;
    this.onMessage = onMessage;
    this.onTooLong = onTooLong;
    this.begin();
  }

  begin() {
    this.chunks = []; // of the message that is not whole yet; none once it is too long
    this.bytes = 0;
    this.head = null; // once it is too long
    this.tail = null;
  }

  take(chunk) {
    for (let start = 0; start < chunk.length;) {
      const end = chunk.indexOf(END_OF_MESSAGE, start);
      if (end < 0)
        return this.keep(chunk.subarray(start));
      const piece = chunk.subarray(start, end);
      start = end + 1;
      if (!this.bytes && piece.length <= this.mostBytes) { // most messages come whole
        this.onMessage(piece);
        continue;
      }
      this.keep(piece);
      this.end();
    }
  }

  keep(chunk) {
    this.chunks.push(chunk);
    this.bytes += chunk.length;
    if (this.bytes <= this.mostBytes)
      return;
    this.head ??= firstBytes(this.chunks);
    this.tail = lastBytes(this.tail ? [this.tail, chunk] : this.chunks);
    this.chunks = [];
  }

  end() {
    const { chunks, head, tail, bytes } = this;
    this.begin();
    if (head)
      this.onTooLong(head.toString(), tail.toString(), bytes);
    else
      this.onMessage(chunks.length === 1 ? chunks[0] : Buffer.concat(chunks));
  }
}

function firstBytes(chunks) {
  return Buffer.concat(chunks, Math.min(ENDS_BYTES, lengthOf(chunks)));
}

function lastBytes(chunks) {
  let from = chunks.length;
  for (let bytes = 0; from > 0 && bytes < ENDS_BYTES; from--)
    bytes += chunks[from - 1].length;
  const needed = chunks.slice(from).map(each => each.subarray(-ENDS_BYTES));
  return Buffer.concat(needed).subarray(-ENDS_BYTES); // a copy: chunks are parts of large buffers
}

function lengthOf(chunks) {
  return chunks.reduce((bytes, each) => bytes + each.length, 0);
}

// Playwright takes an error of these commands for the end of the page's script, and tries some of its calls again. So these fail as a
// script does that throws.
const RUNS_SCRIPT = /^(Runtime\.(evaluate|callFunction(On)?)|script\.(evaluate|callFunction))$/;

// What Playwright gets in place of a message that is too long: an error for the one who asked; null if it is no answer.
// `methodOf(id, sessionId)` returns which command a message answers, if that is known.
// Chromium: {"id":1,"result":{…},"sessionId":"A"}. Firefox: {"id":1,"sessionId":"A","result":{…}}, or over BiDi
// {"type":"success","id":1,"result":{…}}. WebKit: {"result":{…},"id":1}. No page can write a quotation mark into these.
function answerFor(head, tail, text, methodOf) {
  const thrown = { exceptionDetails: { text } };
  const { id, sessionId, isBidi } = idOf(head, tail);
  if (!id)
    return null;
  if (isBidi) {
    if (RUNS_SCRIPT.test(methodOf(id)))
      return { type: 'success', id, result: { type: 'exception', ...thrown } };
    return { type: 'error', id, error: 'unknown error', message: text };
  }
  const answer = RUNS_SCRIPT.test(methodOf(id, sessionId)) ? { result: thrown } : { error: { code: -32000, message: text } };
  return { id, ...answer, ...sessionId && { sessionId } };
}

// Which command a message answers; without an id it is no answer.
function idOf(head, tail) {
  const bidi = /^\{"type":"\w+","id":(\d+),/.exec(head);
  if (bidi)
    return { id: Number(bidi[1]), isBidi: true };
  return {
    id: Number((/^\{"id":(\d+),/.exec(head) ?? /,"id":(\d+)\}$/.exec(tail))?.[1]),
    sessionId: (/^\{"id":\d+,"sessionId":"([^"]*)"/.exec(head) ?? /,"sessionId":"([^"]*)"\}$/.exec(tail))?.[1],
  };
}

// What a dropped message was, for the log.
function named(head) {
  return /"method":"([\w.]{1,100})"/.exec(head)?.[1] ?? 'an answer';
}

// Stands between one browser and Playwright's connection to it. `hooks`: onDropped(what, bytes) for a message that was too
// long, onBroken(error) when nothing can be told apart any more, onError(error) for a message that Playwright fails at, and
// work(message, handle) in which a message is handled.
class BrowserMessages {
  // Playwright's clients take no message above this (`maxPayload` of their WebSocket), so nothing is lost that one could get.
  static mostBytes = 256 * MIB;

  constructor(browser, hooks) {
    this.hooks = hooks;
    this.browser = browser; // Playwright's own
    this.transport = browser._connection._transport;
    this.isBroken = false;
    this.isHeld = false;
    this.holds = 0; // how often it has been held
    this.cdp = null; // of class CdpFront, which takes what is for its clients, unparsed
    this.heard();
    if (this.transport._pipeRead)
      this.ownPipe(this.transport._pipeRead);
    else
      this.ownWebSocket(this.transport._ws);
  }

  heard() {
    this.heardAt = performance.now();
  }

  // For how many milliseconds the browser has said nothing at all; none while it is not heard.
  silentMs() {
    return this.isHeld ? 0 : performance.now() - this.heardAt;
  }

  // Stops reading what the browser says, or goes on; it has a pipe.
  hold(isHeld) {
    this.isHeld = isHeld;
    this.heard();
    this.holds += isHeld ? 1 : 0;
    if (isHeld)
      this.transport._pipeRead.pause();
    else
      this.transport._pipeRead.resume();
  }

  ownPipe(pipe) {
    const messages = new PipeMessages(
      BrowserMessages.mostBytes, message => this.take(message), (...found) => this.tooLong(...found));
    pipe.removeAllListeners('data');
    for (const chunk of this.transport._pendingBuffers) // of a message that is half read
      messages.take(chunk);
    pipe.on('data', chunk => {
      this.heard();
      messages.take(chunk);
    });
  }

  take(message) {
    if (this.cdp?.takes(message))
      return;
    const text = message.toString();
    setImmediate(() => this.deliver(text));
  }

  // A WebSocket has limits of its own, at which it closes, and closes when Playwright fails at a message, too.
  ownWebSocket(ws) {
    takeAnySize(ws);
    ws._socket.on('data', () => this.heard());
    const { emit } = ws;
    ws.emit = (event, data, ...rest) => {
      if (event !== 'message' || data.length <= BrowserMessages.mostBytes)
        return emit.call(ws, event, data, ...rest);
      this.tooLong(firstBytes([data]).toString(), lastBytes([data]).toString(), data.length);
      return true;
    };
    const { onmessage } = this.transport;
    this.transport.onmessage = message => this.handle(onmessage, message);
  }

  deliver(text) {
    if (this.isBroken)
      return;
    const tooLarge = text.length >= COUNTED_FROM_BYTES && this.tooManyValues(text);
    if (tooLarge)
      return this.drop(text.slice(0, ENDS_BYTES), text.slice(-ENDS_BYTES), text.length, tooLarge);
    let message;
    try {
      message = JSON.parse(text);
    } catch (error) {
      this.isBroken = true;
      return this.hooks.onBroken(error);
    }
    this.handle(this.transport.onmessage, message);
  }

  // Playwright's connection takes a message at once or as a promise. Its handlers of events run later, and fail elsewhere.
  handle(onmessage, message) {
    try {
      this.hooks.work(message, () => onmessage?.call(null, message)?.catch?.(this.hooks.onError));
    } catch (error) {
      this.hooks.onError(error);
    }
  }

  // What a script gives its client is checked and copied value by value.
  tooManyValues(text) {
    const { id, sessionId } = idOf(text.slice(0, ENDS_BYTES), text.slice(-ENDS_BYTES));
    const isOfScript = id && RUNS_SCRIPT.test(commandOf(this.browser, id, sessionId));
    return tooManyValuesIn(text, isOfScript ? MOST_VALUES : MOST_VALUES_OF_BROWSER);
  }

  tooLong(head, tail, bytes) {
    const most = BrowserMessages.mostBytes / MIB;
    this.drop(head, tail, bytes, `what the browser answers has ${Math.ceil(bytes / MIB)} MiB, and no message may have more than ${most}`);
  }

  drop(head, tail, bytes, why) {
    this.hooks.onDropped(named(head), bytes);
    const answer = answerFor(head, tail, why, (...asked) => commandOf(this.browser, ...asked));
    if (answer && !this.cdp?.takes(Buffer.from(JSON.stringify(answer))))
      setImmediate(() => this.handle(this.transport.onmessage, answer));
  }
}

module.exports = { BrowserMessages, PipeMessages, answerFor };
