// The front for CDP: joins the WebSockets of one session's clients to the DevTools pipe of its own browser, which Playwright's driver has
// opened and goes on using. So no port is open.
//
// Each connection has a session of its own with the browser, as each client of a DevTools port has. The pipe tells sessions apart by
// `,"sessionId":"…"}` at the end of a message: that is added to what a client says on its root, and taken off what the browser answers
// there. Sessions that come of it (pages, workers, frames) belong to the same connection, and their messages pass as they are, unparsed.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const { ASKS_PAGE } = require('../units/browser_signs.cjs');
const { ParsedMessage, readMessage, Unreadable } = require('./cdp_message.cjs');
const { ENDS_THE_SESSION, isRead, judgeRead } = require('../guard/cdp_methods.cjs');
const { CdpPages } = require('./cdp_pages.cjs');
const { Connection } = require('../sessions/connection.cjs');
const { HiddenPage } = require('./hidden_page.cjs');
const { tooManyValues } = require('../guard/message_bounds.cjs');
const { GOING_AWAY, INTERNAL_ERROR } = require('../sessions/session.cjs');
const { SlowClients } = require('../sessions/slow_clients.cjs');

const MIB = 1024 * 1024;
const MOST_FRAME_BYTES = 256 * MIB; // of a client; above it `ws` ends the connection
const MOST_BYTES = 99 * MIB; // of one message that the browser takes: at 100 MiB it closes its pipe, and a port as well
const MOST_READ_BYTES = 16 * MIB; // of a message whose parameters are read here
const COPIED_BYTES = 64 * 1024; // a message that is shorter is written at once
// What is shorter cannot hold this process up. To mark it as a session's work takes as long as a tenth of an evaluate().
const MARKED_FROM_BYTES = 64 * 1024;
const SESSION_ID_CHARACTERS = 32;
const TAIL = ',"sessionId":"';
const TAIL_BYTES = TAIL.length + SESSION_ID_CHARACTERS + 2;
const ATTACHED = '{"method":"Target.attachedToTarget","params":{"sessionId":"';
const DETACHED = '{"method":"Target.detachedFromTarget","params":{"sessionId":"';
const UNREADABLE = '{"error":';
const MOST_ANSWER_BYTES = 500; // of one that names a context
const ANSWER = /^\{"id":(\d+),/;
const MOST_START_CHARACTERS = 24; // of an answer, with its number
const MOST_ASKED = 100; // of those that are unanswered, for each connection
const ERROR = -32000, NO_SESSION = -32001, INVALID_REQUEST = -32600; // as the browser has them
const BRACE = 0x7d;
const END_OF_MESSAGE = Buffer.from('\0');
const PAGE_CLOSED = 'the page of this connection is closed';

// What one session's clients share.
class CdpFront {
  // `directories`: of class SessionDirectories. `onError(error)` for what fails here.
  constructor(session, options, { directories, loopbackPorts, onError }) {
    this.session = session;
    this.onError = onError;
    this.directories = directories;
    this.directory = directories.take(); // of its files: downloads
    this.root = session.unit.browser._session; // Playwright's own session with the browser
    this.pipe = session.unit.messages.transport._pipeWrite;
    this.sessions = new Map(); // id of a session with the browser -> { connection, isRoot, parent, children }
    this.connections = new Set();
    this.isFull = false; // the pipe
    this.slow = new SlowClients(session.unit.messages, session.unit.process.pid, options.maxBufferedBytes);
    this.isOver = false;
    this.hidden = null; // of class HiddenPage, while it is tried whether the browser opens pages
    this.judged = { // what the rules of cdp_methods.cjs read
      guard: options.clientGuard, isShared: false, isBrowserLevel: true, blocksFileUrls: options.blockFileUrls,
      directory: this.directory, get loopbackPorts() { return [...loopbackPorts.addresses.keys()]; },
    };
    // The proxy serves its files, and learns from this where they are (pwgrid/proxy/session_files.py). No path of it can be followed.
    this.link = path.join(options.filesDirectory, session.id);
    try {
      fs.mkdirSync(this.directory, { recursive: true, mode: 0o700 });
      fs.symlinkSync(path.basename(this.directory), this.link);
    } catch (error) {
      directories.giveBack(this.directory).catch(onError);
      throw error;
    }
    this.kept = options.keptFiles && path.join(options.keptFiles, session.id);
    session.unit.messages.cdp = this;
    this.shown = new CdpPages(session.unit.browser);
    this.prepared = this.prepare();
  }

  // The browser is made what it is for a client that starts it by hand: it has an empty page, and nobody holds its pages. Playwright
  // would attach to each new one.
  async prepare() {
    await this.session.unit.tried?.catch(() => {});
    await Promise.all([
      this.root.send('Target.setAutoAttach', { autoAttach: false, waitForDebuggerOnStart: false, flatten: true }),
      this.root.send('Target.createTarget', { url: 'about:blank' }),
      this.keepDownloads(),
    ]);
  }

  // Where no client says otherwise, downloads are files of the session. What a client has said ends with its connection.
  keepDownloads({ browserContextId } = {}) {
    return this.root.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: this.directory, browserContextId });
  }

  pages() {
    return this.shown.pages;
  }

  // Gives this connection a session with the browser, or with a page of it.
  async join(connection) {
    this.connections.add(connection);
    await this.prepared;
    const { sessionId } = await this.root.send('Target.attachToBrowserTarget');
    connection.attachedId = sessionId;
    const rootId = connection.isOfPage ? await this.attachToPage(sessionId, connection) : sessionId;
    this.sessions.set(rootId, { connection, isRoot: true, parent: null, children: new Set() });
    if (!this.connections.has(connection))
      return this.detach(connection, rootId);
    connection.attached(rootId);
  }

  // Returns the id of a session with the oldest page. It hangs on one with the browser that only the grid uses: on one that hangs on
  // Playwright's own, Playwright speaks, too.
  async attachToPage(sessionId, connection) {
    const own = connection.ofGrid = this.root.createChildSession(sessionId);
    const [oldest] = this.shown.pages.keys();
    const targetId = oldest ?? (await this.root.send('Target.createTarget', { url: 'about:blank' })).targetId;
    own.on('Target.detachedFromTarget', () => connection.pageClosed());
    return (await own.send('Target.attachToTarget', { targetId, flatten: true })).sessionId;
  }

  // Fails if the browser opens no page any more. Clients see nothing of the attempt.
  async tryBrowser(timeoutMs) {
    this.hidden = new HiddenPage(this.session.unit.browser);
    await this.hidden.works(timeoutMs);
    this.hidden = null;
  }

  // Called when this connection is being closed, and when it is over: it gets nothing more.
  left(connection) {
    this.slow.forget(connection);
    this.session.unit.signs.gone(connection);
    if (this.connections.delete(connection) && connection.rootId && !this.isOver)
      this.detach(connection, connection.rootId).then(() => this.keepDownloads()).catch(() => {}); // the browser has ended
  }

  // What still comes of these sessions until then is for nobody.
  async detach({ attachedId, ofGrid }, rootId) {
    ofGrid?.dispose();
    await this.root.send('Target.detachFromTarget', { sessionId: attachedId });
    this.forget(rootId);
  }

  // Called when the session is over; its browser ends.
  close() {
    this.isOver = true;
    this.shown.close();
    this.directories.giveBack(this.directory, this.kept).catch(this.onError);
    try {
      fs.unlinkSync(this.link); // rmSync of Node 24.13 leaves a link that leads nowhere
    } catch (error) {
      this.onError(error);
    }
  }

  // ----------------------------------------------------------------------------------------------- from the browser

  // Whether a message (a Buffer) is for a client; then that has it.
  takes(message) {
    const sessionId = sessionIdOf(message);
    if (!sessionId)
      return isOfNoSession(message) ? this.hasNoSession(message) : this.takesUnreadable(message);
    const session = this.sessions.get(sessionId);
    if (!session)
      return false;
    const { connection } = session;
    if (this.hidden?.isIn(message))
      return true;
    const event = isTargetEvent(message) ? message.latin1Slice(0, DETACHED.length + SESSION_ID_CHARACTERS) : '';
    if (event.startsWith(ATTACHED))
      this.add(idAfter(event, ATTACHED), sessionId, connection);
    if (message.length > MARKED_FROM_BYTES)
      this.session.server.sessionInWork.begins(this.session.id);
    if (connection.makesContexts.size)
      this.contextMade(message, connection);
    if (connection.asked.size)
      connection.pageAnswered(message);
    connection.send(session.isRoot ? withoutTail(message) : message);
    if (event.startsWith(DETACHED))
      this.forget(idAfter(event, DETACHED));
    return true;
  }

  // The browser answers so, without the session's id, a client whose session has just gone. The number may also be one of Playwright's own,
  // so it is kept from that. Which of several clients it is for is not known; each has heard that its session is gone.
  hasNoSession(message) {
    if (this.connections.size === 1)
      this.connections.forEach(each => each.send(message));
    return true;
  }

  // What the browser says of a message that it cannot read: it knows neither its number nor its session. Playwright sends none.
  takesUnreadable(message) {
    if (!message.toString('latin1', 0, UNREADABLE.length).startsWith(UNREADABLE))
      return false;
    const [connection, ...others] = this.connections;
    if (connection && !others.length) // else nobody knows whose it was
      connection.send(message);
    return true;
  }

  // Downloads of a context that a client makes are files of the session, too, before the client can say otherwise.
  contextMade(message, connection) {
    if (message.length > MOST_ANSWER_BYTES)
      return;
    const { id, result } = JSON.parse(message);
    if (connection.makesContexts.delete(id) && result)
      this.keepDownloads(result).catch(() => {}); // the browser has ended
  }

  add(sessionId, parent, connection) {
    this.sessions.set(sessionId, { connection, isRoot: false, parent, children: new Set() });
    this.sessions.get(parent).children.add(sessionId);
  }

  // The sessions that came of this one are gone with it.
  forget(sessionId) {
    this.sessions.get(this.sessions.get(sessionId)?.parent)?.children.delete(sessionId);
    const gone = [sessionId];
    for (const each of gone) { // they may be as deep as a client likes
      const session = this.sessions.get(each);
      gone.push(...session?.children ?? []);
      session?.connection.pageGone(each);
      this.sessions.delete(each);
    }
  }

  // -------------------------------------------------------------------------------------------------- to the browser

  // Writes a message, given in pieces (a text or Buffers). While the pipe is full no client is read.
  write(...pieces) {
    if (typeof pieces[0] === 'string')
      pieces = [`${pieces[0]}\0`];
    else if (pieces[0].length < COPIED_BYTES)
      pieces = [Buffer.concat([...pieces, END_OF_MESSAGE])];
    else
      pieces.push(END_OF_MESSAGE);
    let hasRoom;
    for (const each of pieces)
      hasRoom = this.pipe.write(each);
    if (hasRoom || this.isFull)
      return;
    this.isFull = true;
    this.connections.forEach(each => each.pause());
    this.pipe.once('drain', () => {
      this.isFull = false;
      this.connections.forEach(each => each.resume());
    });
  }
}

// One client's WebSocket, with a session of its own with the browser, or with one page (`isOfPage`): then that is the root of what it says.
class CdpConnection extends Connection {
  constructor(session, socket, { isOfPage = false }) {
    super(session, socket);
    this.isOfPage = isOfPage;
    this.attachedId = ''; // of its session with the browser
    this.ofGrid = null; // Playwright's object for that session, where only the grid speaks on it
  }

  // Answers the handshake. The client is read when it has its session.
  static server(WebSocketServer) {
    return new WebSocketServer({ noServer: true, clientTracking: false, maxPayload: MOST_FRAME_BYTES, perMessageDeflate: false });
  }

  open(server, request, early) {
    server.handleUpgrade(request, this.socket, early, ws => this.upgraded(ws));
  }

  upgraded(ws) {
    super.upgraded(ws);
    this.rootId = ''; // of the session that it has where it names none
    this.tail = null;
    this.makesContexts = new Set(); // numbers of the commands that do, until they are answered
    this.asked = new Map(); // id of an unanswered command of ASKS_PAGE -> session of the page
    this.front = this.session.cdp;
    ws.on('error', () => {}); // `ws` has closed it then
    ws.on('message', data => {
      try {
        this.take(data);
      } catch (error) {
        this.failed(error);
      }
    });
    this.pause();
    this.front.join(this).catch(error => {
      if (!this.session.unit.hasEnded) // else it ends with that reason
        this.failed(error);
    });
  }

  attached(rootId) {
    this.rootId = rootId;
    this.tail = Buffer.from(`${TAIL}${rootId}"}`);
    this.resume();
  }

  // Chromium, too, ends the connection to a page with the page.
  pageClosed() {
    if (this.front.connections.has(this))
      this.fail('client', 'client disconnected', GOING_AWAY, { text: PAGE_CLOSED });
  }

  failed(error) {
    this.front.onError(error);
    this.fail('grid', 'message failed', INTERNAL_ERROR);
  }

  pause() {
    this.ws.pause();
  }

  resume() {
    if (this.rootId && !this.front.isFull && !this.front.slow.has(this))
      this.ws.resume();
  }

  close(...frame) {
    super.close(...frame);
    this.front?.left(this); // a browser that is not asked any more says no more
  }

  over() {
    this.front?.left(this);
    super.over();
  }

  // Takes a message of the client.
  take(data) {
    if (this.isClosing)
      return;
    if (data.length > MARKED_FROM_BYTES)
      this.session.server.sessionInWork.begins(this.session.id);
    let message;
    try {
      message = readMessage(data);
    } catch (error) {
      return this.cannotRead(error);
    }
    const { id, sessionId, method } = message;
    if (sessionId && this.front.sessions.get(sessionId)?.connection !== this)
      return this.answer({ id, sessionId, code: NO_SESSION, message: 'Session with given id not found.' });
    const refusal = tooLarge(data, method);
    if (refusal)
      return this.answer({ id, sessionId, code: ERROR, message: refusal });
    if (ASKS_PAGE.has(method))
      this.asksPage(id, method, sessionId);
    if (isRead(method))
      this.judge(message);
    else
      this.front.write(...message.forBrowser(this));
  }

  // Passes on a message whose parameters are looked at, as they were read.
  judge(message) {
    const { id, sessionId, method } = message;
    let params;
    try {
      params = message.params ?? {};
    } catch (error) {
      return this.cannotRead(error, message);
    }
    const judged = judgeRead(method, params, this.front.judged);
    if (judged === ENDS_THE_SESSION)
      return this.endSession(id, sessionId);
    if (judged.refusal)
      return this.answer({ id, sessionId, code: ERROR, message: judged.refusal });
    if (method === 'Target.createBrowserContext')
      this.makesContexts.add(id);
    this.front.write(...new ParsedMessage(id, method, judged, sessionId).forBrowser(this));
  }

  cannotRead(error, { id = error.id || null, sessionId } = {}) {
    if (!(error instanceof Unreadable))
      throw error;
    this.answer({ id, sessionId, code: INVALID_REQUEST, message: `the grid cannot read this message: ${error.message}` });
  }

  // What a page leaves unanswered is a sign that the browser may have no process for it (browser_signs.cjs).
  asksPage(id, method, sessionId) {
    if (this.asked.size >= MOST_ASKED)
      return;
    this.asked.set(id, sessionId);
    this.session.unit.signs.began(this, { id, method });
  }

  pageAnswered(message) {
    const id = Number(ANSWER.exec(message.latin1Slice(0, MOST_START_CHARACTERS))?.[1]);
    if (this.asked.delete(id))
      this.session.unit.signs.answered(this, { id });
  }

  pageGone(sessionId) {
    for (const [id, of] of this.asked) {
      if (of === sessionId && this.asked.delete(id))
        this.session.unit.signs.answered(this, { id });
    }
  }

  endSession(id, sessionId) {
    this.send(JSON.stringify({ id, result: {}, ...sessionId && { sessionId } }));
    this.session.end('client', 'client closed the browser');
  }

  // Answers in place of the browser.
  answer({ id, sessionId, ...error }) {
    this.send(JSON.stringify({ ...id !== null && { id: Number(id) }, error, ...sessionId && { sessionId } }));
  }

  // What the browser says until its session is detached is for nobody.
  send(message) {
    if (this.isClosing || !this.front.connections.has(this))
      return;
    this.ws.send(message, { binary: false });
    this.front.slow.sent(this);
  }
}

function tooLarge(data, method) {
  const most = isRead(method) ? MOST_READ_BYTES : MOST_BYTES;
  if (data.length > most)
    return `a message of ${Math.ceil(data.length / MIB)} MiB is too large for ${isRead(method) ? method : 'the browser'}, which takes ${most / MIB}`;
  return isRead(method) ? tooManyValues(data) : null;
}

// The session that a message of the browser is of; '' if it is of Playwright's own root. No page can write a quotation mark into this.
function sessionIdOf(message) {
  const start = message.length - TAIL_BYTES;
  if (start < 0 || message[message.length - 1] !== 0x7d || message[message.length - 2] !== 0x22)
    return '';
  const tail = message.latin1Slice(start);
  return tail.startsWith(TAIL) ? tail.slice(TAIL.length, -2) : '';
}

function isOfNoSession(message) {
  return message.length < 200 && /^\{"id":\d+,"error":\{"code":-32001,/.test(message.latin1Slice());
}

function withoutTail(message) {
  const start = message.length - TAIL_BYTES;
  message[start] = BRACE;
  return message.subarray(0, start + 1);
}

// Whether it is `{"method":"Target.…`
function isTargetEvent(message) {
  return message[2] === 0x6d && message[11] === 0x54 && message[12] === 0x61;
}

function idAfter(event, start) {
  return event.slice(start.length, start.length + SESSION_ID_CHARACTERS);
}

module.exports = { CdpFront, CdpConnection };
