// One client's socket, from the handoff to its close: its WebSocket, its close frame, how much of what it is sent it has not read. What is
// said over it is the matter of a front (playwright_front.cjs, cdp_front.cjs).
'use strict';

const { answerNoPing, dropHalfMessage, isClosedByClient, messageOf, piecesOf } = require('../playwright/web_sockets.cjs');
const { GOING_AWAY, protocolError } = require('./session.cjs');
const { Silence } = require('./session_timeouts.cjs');

const CLOSE_GRACE_MS = 3_000; // between the close frame and the end of the socket, if the client does not answer or read it
const TEXT_LIMIT_BYTES = 123; // of the reason in a close frame (RFC 6455)
const MIB = 1024 * 1024;
const COUNTED_FROM_BYTES = MIB; // a connection that holds less does not matter, however many a session has
// What the connections of one session may hold together of messages that are not whole: the largest message, and something for others.
const MOST_HALF_BYTES = 320 * MIB;
const PIECE_BYTES = 256; // what each piece of a message takes beside its bytes
const MESSAGE_TOO_BIG = 1009;
const NO_HOST = ['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'];
const HALF_MESSAGES = 'too much of messages that are not whole, of all clients of this session together';
const kConnection = Symbol('connection'); // property of a socket

class Connection {
  constructor(session, socket) {
    this.session = session;
    this.socket = socket;
    this.ws = null;
    this.silence = null; // of class Silence, once it is upgraded
    this.errno = '';
    this.timer = null;
    this.isClosing = false; // it has a close frame of ours
    this.isOver = false;
    this.unanswered = null; // what the last ping said, if it waits for its answer
    this.half = null; // stands for the message that is not whole
    this.halfCame = 0; // bytes that have come of it, and with it
    this.halfBytes = 0; // that it takes
    socket[kConnection] = this;
    socket.on('error', error => { this.errno = error.code; });
    socket.once('close', () => this.closed());
    session.connections.add(this);
  }

  get isLost() {
    return NO_HOST.includes(this.errno);
  }

  // Called with the WebSocket once there is one.
  upgraded(ws) {
    this.ws = ws;
    this.silence = new Silence(this);
    answerNoPing(ws);
    ws.on('ping', data => this.pinged(data));
    this.socket.on('data', chunk => this.countHalf(chunk.length));
    // Playwright closes a WebSocket when the browser disconnects, and `ws` when the client breaks the protocol. Then the client gets the
    // grid's close frame, and no terminate() right after it, which would swallow it.
    const { close, terminate } = ws;
    this.sendClose = (code, text) => close.call(ws, code, text);
    ws.close = (code, text) => {
      if (isClosedByClient(ws)) {
        // Its slot is free as soon as the client has said goodbye: `ws` would wait up to 30 s for its end of the socket.
        // What the client has made is removed when the socket ends.
        this.socket.once('finish', () => this.socket.destroy());
        this.timer ??= setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
        close.call(ws, code, text);
        this.over();
      } else if (!this.isClosing)
        this.closedByServer(code);
    };
    ws.terminate = () => {
      if (!this.isClosing)
        terminate.call(ws);
    };
    this.session.opened();
  }

  // Called when the WebSocket's library, or what uses it, closes it with this code. A front may know a better reason.
  closedByServer(code) {
    this.fail(...protocolError(code));
  }

  // Whether the client reads what it is sent. A page can say more than any client reads, and all of it would be kept here. The message that is
  // to be sent is not counted: one answer may be larger than the limit.
  isRead() {
    if (!this.isClosing && this.ws.bufferedAmount > this.session.server.options.maxBufferedBytes)
      this.fail('grid', 'the client does not read');
    return !this.isClosing;
  }

  // Answers a ping; of those that come while much waits for the client only the last one, once that is read (RFC 6455, 5.5.3). A client
  // that pings and does not read would have each answer kept here, which takes three times its bytes.
  pinged(data) {
    if (this.isClosing)
      return;
    if (this.ws.bufferedAmount < COUNTED_FROM_BYTES)
      return this.ws.pong(data);
    if (!this.unanswered) {
      this.socket.once('drain', () => {
        this.ws.pong(this.unanswered, undefined, () => {}); // it may be closed
        this.unanswered = null;
      });
    }
    this.unanswered = data;
  }

  // A client may begin a message and never end it, and what it sends between its pieces keeps memory, too: a piece is part of what came
  // with it.
  countHalf(bytes) {
    const half = messageOf(this.ws);
    const pieces = piecesOf(this.ws);
    const before = half === this.half ? this.halfCame : 0;
    this.half = half;
    this.halfCame = pieces ? before + bytes : 0;
    this.halfBytes = this.halfCame + PIECE_BYTES * pieces;
    if (this.halfBytes > COUNTED_FROM_BYTES)
      boundHalfMessages(this.session.connections);
  }

  // What it has sent of a message goes, and what it sends until its end is not kept.
  dropHalf() {
    this.socket.removeAllListeners('data').resume();
    dropHalfMessage(this.ws);
    this.halfBytes = 0;
  }

  // Ends this connection alone if the session has others, or is kept without one; else the session.
  fail(by, kind, code = GOING_AWAY, more = {}) {
    if (this.session.connections.size === 1 && !this.session.canBeKept)
      return this.session.end(by, kind, code, more);
    const { closeTexts } = this.session.server.options;
    this.close(code, more.text ?? closeTexts[kind] ?? kind);
  }

  // Closes it with a close frame, and its socket after CLOSE_GRACE_MS if the client does not answer.
  close(code, text) {
    if (this.isClosing)
      return;
    this.isClosing = true;
    clearTimeout(this.timer);
    if (!this.ws) {
      if (!this.socket.writableEnded) // else it has got an HTTP answer
        this.socket.destroy();
      return;
    }
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
    this.sendClose(code, cut(text, TEXT_LIMIT_BYTES));
  }

  // Answers a client for which there is no browser (any more).
  refuse(status, error) {
    this.isClosing = true;
    answer(this.socket, status, error);
  }

  closed() {
    clearTimeout(this.timer);
    this.over();
  }

  // Tells its session, once. The socket may still be open, if the client has said goodbye.
  over() {
    if (this.isOver)
      return;
    this.isOver = true;
    this.session.left(this);
  }
}

// Ends the connection that has most of messages that are not whole, if all have more than MOST_HALF_BYTES together.
function boundHalfMessages(connections) {
  const all = [...connections].sort((one, other) => other.halfBytes - one.halfBytes);
  if (all.reduce((total, each) => total + each.halfBytes, 0) <= MOST_HALF_BYTES)
    return;
  all[0].fail('client', 'protocol error', MESSAGE_TOO_BIG, { detail: String(MESSAGE_TOO_BIG), text: HALF_MESSAGES });
  all[0].dropHalf();
}

// Answers a handshake with an error, and ends the socket; after CLOSE_GRACE_MS also if the client does not end its side.
function answer(socket, status, error) {
  const body = JSON.stringify({ error });
  const timer = setTimeout(() => socket.destroy(), CLOSE_GRACE_MS);
  socket.once('close', () => clearTimeout(timer));
  socket.on('error', () => {});
  socket.resume();
  socket.end(`HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nRetry-After: 1\r\n`
    + `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`);
}

function cut(text, limitBytes) {
  const bytes = Buffer.from(text);
  if (bytes.length <= limitBytes)
    return text;
  return bytes.toString('utf8', 0, limitBytes).replace(/\ufffd+$/, ''); // an incomplete character at the cut
}

module.exports = { Connection, kConnection, answer };
