// One session in the browser server: its socket from the handoff to its close, and why it ended.
'use strict';

const { tooManyValues } = require('./message_bounds.cjs');
const { SessionTimeouts } = require('./session_timeouts.cjs');

const CLOSE_GRACE_MS = 3_000; // between the close frame and the end of the socket, if the client does not answer or read it
const TEXT_LIMIT_BYTES = 123; // of the reason in a close frame (RFC 6455)
const GOING_AWAY = 1001;
const INTERNAL_ERROR = 1011;
const UNSUPPORTED_DATA = 1003;
const NO_DEVTOOLS = 'this grid speaks Playwright\'s protocol, not CDP: use connect(), not connectOverCDP() or Puppeteer';
const kSession = Symbol('session'); // property of a socket

class Session {
  // `server`: { options, workMark, isStopping(), onOver(session, report) }
  constructor(id, socket, server, unit) {
    this.id = id;
    this.server = server;
    this.unit = unit; // whose browser it gets
    this.socket = socket;
    this.ws = null;
    this.clientFields = undefined; // what the worker was told of the client
    this.client = null; // of class Client: see client_cleanup.cjs
    this.by = '';
    this.kind = ''; // of the end's reason (EndReason in pwgrid/common/reasons.py); set once: the first one counts
    this.detail = '';
    this.errno = '';
    this.timeouts = null; // of class SessionTimeouts, once it is upgraded
    this.timer = null;
    this.isOver = false;
    socket[kSession] = this;
    socket.on('error', error => { this.errno = error.code; });
    socket.once('close', () => this.closed());
  }

  upgraded(ws) {
    this.ws = ws;
    if (!ws) { // playwright has answered with an HTTP error that says why, and closes the socket
      this.by = 'grid';
      this.kind = 'handshake refused';
      return;
    }
    this.timeouts = new SessionTimeouts(this, this.server.options);
    const { emit } = ws;
    ws.emit = (event, data, ...rest) => event === 'message' && !this.takes(data) || emit.call(ws, event, data, ...rest);
    ws.prependOnceListener('message', data => {
      this.inOneWrite();
      this.refuseDevTools(data);
    });
    // Playwright closes a socket itself when the browser disconnects or the client breaks the protocol. Then the client
    // gets the grid's close frame, and no terminate() right after it, which would swallow it.
    const { close, terminate, send } = ws;
    ws.send = (...message) => this.isRead() && send.apply(ws, message);
    this.sendClose = (code, text) => close.call(ws, code, text);
    ws.close = (code, text) => {
      if (ws._closeFrameReceived) {
        // Its slot is free as soon as the client has said goodbye: `ws` would wait up to 30 s for its end of the socket.
        // Playwright removes what the client has made when the socket ends.
        this.socket.once('finish', () => this.socket.destroy());
        this.timer ??= setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
        close.call(ws, code, text);
        this.over();
      } else if (!this.kind)
        this.endedByPlaywright(code);
    };
    ws.terminate = () => {
      if (!this.kind)
        terminate.call(ws);
    };
  }

  // Whether Playwright gets a message: to parse one of millions of values takes seconds. It is answered here, if it has an id in front.
  takes(data) {
    this.server.workMark.begins(this.id);
    const refusal = tooManyValues(data);
    if (!refusal)
      return true;
    const id = /^\s*\{\s*"id"\s*:\s*(\d{1,15})\s*,/.exec(data.toString('latin1', 0, 100))?.[1];
    if (id)
      this.ws.send(JSON.stringify({ id: Number(id), error: { error: { name: 'Error', message: refusal, stack: '' } } }));
    else
      this.end('grid', 'too much work');
    return false;
  }

  // Whether the client reads what it is sent. A page can say more than any client reads, and all of it would be kept here. The message that is
  // to be sent is not counted: one answer may be larger than the limit.
  isRead() {
    if (this.ws.bufferedAmount > this.server.options.maxBufferedBytes)
      this.end('grid', 'the client does not read');
    return !this.kind;
  }

  // Playwright answers the first message with eight at once. A write takes as long as making one of them.
  inOneWrite() {
    this.socket.cork();
    setImmediate(() => this.socket.uncork());
  }

  // A client of the DevTools protocol is known by its first message, which has no guid. Only an answer in that protocol
  // reaches its user: such clients show no refusal and no close frame.
  refuseDevTools(data) {
    if (data.includes('"guid"'))
      return;
    const command = parsed(data);
    if (!Number.isInteger(command?.id) || !/^\w+\.\w+$/.test(command.method))
      return;
    this.ws.send(JSON.stringify({ id: command.id, error: { code: -32000, message: NO_DEVTOOLS } }));
    this.ws.send = () => {}; // Playwright's answer to the same message
    this.protocolError(UNSUPPORTED_DATA, NO_DEVTOOLS);
  }

  endedByPlaywright(code) {
    if (code !== undefined && code !== GOING_AWAY)
      this.protocolError(code);
    else if (this.server.isStopping())
      this.end('grid', 'worker stopped');
    else
      this.end('browser', 'browser crashed', INTERNAL_ERROR);
  }

  // Its client has broken the protocol. `code` is of the WebSocket protocol.
  protocolError(code, text = `protocol error (${code})`) {
    this.end('client', 'protocol error', code, { detail: String(code), text });
  }

  // Ends the session with a close frame, and the socket after CLOSE_GRACE_MS if the client does not answer. The record gets
  // `kind` and `detail`; the client's user reads `text`, by default the options' text for this kind.
  end(by, kind, code = GOING_AWAY, { detail = '', text = this.server.options.closeTexts[kind] ?? kind } = {}) {
    if (this.kind)
      return;
    this.by = by;
    this.kind = kind;
    this.detail = detail;
    clearTimeout(this.timer);
    if (!this.ws)
      return void this.socket.destroy();
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
    this.sendClose(code, cut(text, TEXT_LIMIT_BYTES));
  }

  // Answers a client that came when the browser had ended or this process was stopping.
  refuse(by, kind) {
    this.by = by;
    this.kind = kind;
    const body = JSON.stringify({ error: `${kind}; connect again` });
    this.socket.resume();
    this.socket.end('HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n'
      + `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`);
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
  }

  closed() {
    clearTimeout(this.timer);
    this.client?.gone();
    this.over();
  }

  // Reports the end, once. The socket may still be open, if the client has said goodbye.
  over() {
    if (this.isOver)
      return;
    this.isOver = true;
    const lost = ['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'].includes(this.errno);
    this.server.onOver(this, {
      bytesIn: this.socket.bytesRead, bytesOut: this.socket.bytesWritten,
      by: this.by || 'client',
      reason: { kind: this.kind || (lost ? 'connection lost' : 'client disconnected'), detail: this.detail },
    });
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}

function cut(text, limitBytes) {
  const bytes = Buffer.from(text);
  if (bytes.length <= limitBytes)
    return text;
  return bytes.toString('utf8', 0, limitBytes).replace(/\ufffd+$/, ''); // an incomplete character at the cut
}

module.exports = { Session, kSession, INTERNAL_ERROR };
