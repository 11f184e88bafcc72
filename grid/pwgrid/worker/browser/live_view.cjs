// Shows the pages of a session to whoever looks, over a Unix socket in the worker's private directory: the proxy connects,
// and decides who may. Frames are JPEG, at most FRAMES_PER_S of them, and only while somebody looks.
//
// A packet is its length (4 bytes, big endian), a byte for its kind, and that many bytes. Viewers say {session, operator} first, then
// {page} to look at another page, and {ack} for each frame: nobody gets a frame before that for the last one, nor before that is
// read, so a viewer that is slow costs one frame of memory. Here we say {pages, page} whenever that has changed, {ended} at the end;
// {full}, which is how many look already, to whoever is one too many.
'use strict';

const fs = require('node:fs');
const net = require('node:net');

const { detach, sessionIn, tell } = require('./playwright/cdp_sessions.cjs');
const { hasOthers, hasOwnSessions, whyNotShown } = require('./playwright/screencasts.cjs');

const { listen } = net.Server.prototype; // as it is before launcher.cjs keeps clients from listening

const JSON_KIND = 0;
const JPEG_KIND = 1;
const HEADER_BYTES = 5;
const MOST_BYTES = 4096; // of what a viewer says at once
const MOST_CONNECTIONS = 64;
const MOST_OPERATORS = 8; // who look at sessions of this browser
const MOST_OWNERS = 4; // who look at one session, which is their own
const MOST_PAGES = 100; // that are listed
const MOST_URL = 2_000; // characters: a data: URL may have millions
const MOST_UNREAD_BYTES = 1024 * 1024; // of what was said; frames wait until nothing is unread
const LIST_MS = 500; // between two looks at what pages there are
const FRAME_MS = { chromium: 200, others: 500 }; // other browsers have no screencast of their own: each frame is a screenshot
const PATIENT_MS = 2_000; // the session's own screencast asks for its frames itself
const SETTLED = 3; // frame times without a frame: the browser may have left out what came last, while it waited for us
const SIZE = { width: 1280, height: 800 };
const QUALITY = 60;
const CLOCK_SET_BACK_S = 1;

// `pagesOf(sessionId)`: that session's pages by id; null when there is no such session (any more).
function serveLiveView(socketPath, browserType, pagesOf) {
  fs.rmSync(socketPath, { force: true });
  const casts = new Map(); // page -> Cast
  const viewers = new Set();
  // How many look already, if that is as many as may; else 0.
  const full = (session, isOperator) => {
    const most = isOperator ? MOST_OPERATORS : MOST_OWNERS;
    const others = [...viewers].filter(each => each.session && each.isOperator === isOperator && (isOperator || each.session === session));
    return others.length >= most ? others.length : 0;
  };
  const shared = { casts, pagesOf, full, frameMs: FRAME_MS[browserType] ?? FRAME_MS.others };
  const server = net.createServer(socket => {
    const viewer = new Viewer(socket, shared);
    if (viewers.size >= MOST_CONNECTIONS)
      return void viewer.refuse(viewers.size);
    viewers.add(viewer);
    socket.once('close', () => viewers.delete(viewer));
  });
  server.on('error', error => console.error(error));
  listen.call(server, { path: socketPath });
  server.unref();
  return server;
}

class Viewer {
  constructor(socket, shared) {
    this.socket = socket;
    this.shared = shared;
    this.unread = Buffer.alloc(0);
    this.session = '';
    this.isOperator = false; // or else the session's owner
    this.chosen = ''; // by the viewer; '' is the newest page
    this.page = null;
    this.listed = '';
    this.mayHave = true; // another frame
    this.waiting = null; // the newest frame that it has not had
    this.timer = null;
    socket.on('error', () => {});
    socket.on('data', data => this.read(data));
    socket.once('close', () => {
      clearInterval(this.timer);
      this.lookAt(null);
    });
  }

  read(data) {
    this.unread = Buffer.concat([this.unread, data]);
    while (this.unread.length >= HEADER_BYTES) {
      const end = HEADER_BYTES + this.unread.readUInt32BE(0);
      if (end > MOST_BYTES)
        return void this.socket.destroy();
      if (this.unread.length < end)
        return;
      const said = this.unread.subarray(HEADER_BYTES, end);
      this.unread = this.unread.subarray(end);
      try {
        this.hear(JSON.parse(said));
      } catch (error) {
        console.error(error);
        return void this.socket.destroy();
      }
    }
  }

  hear({ session, operator, page, ack }) {
    if (session && !this.session) {
      this.isOperator = operator === true;
      const full = this.shared.full(session, this.isOperator);
      if (full)
        return void this.refuse(full);
      this.session = session;
      this.timer = setInterval(() => this.list(), LIST_MS);
      this.list();
    }
    if (page !== undefined) {
      this.chosen = page;
      this.list();
    }
    if (ack) {
      this.mayHave = true;
      this.sendWaiting();
    }
  }

  refuse(full) {
    this.unread = Buffer.alloc(0);
    this.socket.removeAllListeners('data').resume(); // it ends only once all that it says is read
    this.say(JSON_KIND, JSON.stringify({ full }));
    this.socket.end();
  }

  list() {
    const pages = this.shared.pagesOf(this.session);
    if (!pages) {
      clearInterval(this.timer);
      this.say(JSON_KIND, JSON.stringify({ ended: true }));
      return void this.socket.end();
    }
    if (!pages.has(this.chosen))
      this.chosen = '';
    const id = this.chosen || [...pages.keys()].at(-1) || '';
    const page = pages.get(id) ?? null;
    const why = page ? whyNotShown(page) : '';
    const listed = [...pages].slice(-MOST_PAGES).map(([key, each]) => ({ id: key, url: each.mainFrame().url().slice(0, MOST_URL) }));
    const list = JSON.stringify({ pages: listed, page: id, why });
    if (list !== this.listed && this.socket.writableLength <= MOST_UNREAD_BYTES)
      this.say(JSON_KIND, this.listed = list);
    this.lookAt(why ? null : page);
  }

  lookAt(page) {
    if (page === this.page)
      return;
    const { casts, frameMs } = this.shared;
    casts.get(this.page)?.leave(this);
    this.page = page;
    this.waiting = null;
    if (!page)
      return;
    if (!casts.has(page))
      casts.set(page, new (hasOwnSessions(page) ? OwnCast : SharedCast)(page, frameMs, () => casts.delete(page)));
    casts.get(page).join(this);
  }

  offer(frame) {
    this.waiting = frame;
    this.sendWaiting();
  }

  // A viewer may say that it has had a frame, and read nothing.
  sendWaiting() {
    if (this.waiting && this.mayHave && !this.socket.writableLength)
      this.send(this.waiting);
  }

  send(frame) {
    this.mayHave = false;
    this.waiting = null;
    this.say(JPEG_KIND, frame);
  }

  say(kind, content) {
    if (this.socket.destroyed)
      return;
    const payload = Buffer.from(content);
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeUInt32BE(payload.length, 0);
    header[4] = kind;
    this.socket.write(header);
    this.socket.write(payload, () => this.sendWaiting());
  }
}

// The screencast of one page, for all who look at it.
class Cast {
  constructor(page, frameMs, onEmpty) {
    this.page = page;
    this.frameMs = frameMs;
    this.onEmpty = onEmpty;
    this.viewers = new Set();
    this.last = null;
    this.turn = Promise.resolve();
    this.newest = null;
    this.showing = null; // a timer, while there is a frame that may not be shown yet
    this.shownAt = 0;
    this.settling = null;
    this.isSettled = false; // the next frame is the answer to `settle`
  }

  join(viewer) {
    this.viewers.add(viewer);
    if (this.last)
      viewer.offer(this.last);
  }

  leave(viewer) {
    this.viewers.delete(viewer);
    if (this.viewers.size)
      return;
    clearTimeout(this.settling);
    clearTimeout(this.showing);
    this.end();
    this.onEmpty();
  }

  take(frame) {
    this.newest = frame;
    this.showing ??= setTimeout(() => this.show(), Math.max(0, this.shownAt + this.frameMs - performance.now()));
  }

  // The promise is kept when the browser may send its next frame.
  nextTurn(afterMs) {
    this.turn = this.turn.then(() => new Promise(resolve => setTimeout(resolve, afterMs)));
    return this.turn;
  }

  show() {
    this.showing = null;
    this.shownAt = performance.now();
    if (this.last?.equals(this.newest))
      return;
    this.last = this.newest;
    for (const viewer of this.viewers)
      viewer.offer(this.last);
  }

  // Shows the page anew once no frame has come for a while, as the browser may have left the last one out. The frame that
  // comes of that needs no other: it is alone on its way, so none is left out.
  settleSoon() {
    clearTimeout(this.settling);
    if (!this.isSettled)
      this.settling = setTimeout(() => this.settle(), SETTLED * this.frameMs);
    this.isSettled = false;
  }

  // A screencast that begins shows the page as it is.
  settle() {
    this.isSettled = true;
    this.turn = Promise.resolve();
    this.restart();
  }
}

// Chromium has a screencast for each CDP session, so this one has a session, and the client's own are as without it.
class OwnCast extends Cast {
  constructor(...args) {
    super(...args);
    this.newestAt = 0; // Unix seconds
    this.session = null;
    this.isOver = false;
    this.begin().catch(error => this.isOver || this.page.isClosed() || console.error(error));
  }

  async begin() {
    this.session = sessionIn(await this.page.browserContext.newCDPSession(this.page));
    if (this.isOver)
      return detach(this.session);
    this.session.on('Page.screencastFrame', frame => this.came(frame));
    this.start();
    this.untilFirst();
  }

  // Chromium may show nothing of a page until its screencast begins anew: seen with the driver 1.62, one time in three. Ever more
  // rarely, since a busy host may take long over a first frame.
  untilFirst(waitMs = SETTLED * this.frameMs) {
    this.settling = setTimeout(() => {
      this.restart();
      this.untilFirst(2 * waitMs);
    }, waitMs);
  }

  start() {
    const options = { format: 'jpeg', quality: QUALITY, maxWidth: SIZE.width, maxHeight: SIZE.height };
    tell(this.session, 'Page.startScreencast', options);
  }

  restart() {
    tell(this.session, 'Page.stopScreencast');
    this.start();
  }

  came({ data, metadata, sessionId }) {
    if (this.isOver)
      return;
    const now = Date.now() / 1000;
    const at = metadata.timestamp ?? now;
    // Frames are encoded side by side, so an older one may come late. Where the newest is of a time to come, the clock was
    // set back; a little is nothing, since a frame may bear the time at which it will be on the screen.
    if (at >= this.newestAt || this.newestAt > now + CLOCK_SET_BACK_S) {
      this.newestAt = at;
      this.take(Buffer.from(data, 'base64'));
    }
    this.settleSoon();
    this.nextTurn(this.frameMs).then(() => tell(this.session, 'Page.screencastFrameAck', { sessionId }));
  }

  end() {
    this.isOver = true;
    if (this.session)
      detach(this.session);
  }
}

// Elsewhere Playwright has one screencast for each page, which videos and traces use, too, with the size of whoever came
// first: what the session itself starts comes before ours, and its own pace counts.
class SharedCast extends Cast {
  constructor(...args) {
    super(...args);
    const { screencast } = this.page;
    const { addClient } = screencast;
    this.client = {
      onFrame: frame => this.came(frame), dispose() {}, gracefulClose: async () => {},
      size: SIZE, quality: QUALITY, fps: Math.round(1000 / this.frameMs),
    };
    this.start = () => addClient.call(screencast, this.client);
    screencast.addClient = client => {
      screencast.removeClient(this.client);
      const added = addClient.call(screencast, client);
      this.start();
      return added;
    };
    this.start();
  }

  restart() {
    this.page.screencast.removeClient(this.client);
    this.start();
  }

  // The browser sends the next frame when this promise is kept, or the session's own client has asked for it.
  came({ buffer }) {
    this.take(buffer);
    const isShared = hasOthers(this.page);
    this.isSettled ||= isShared; // to begin anew would disturb the others
    this.settleSoon();
    return this.nextTurn(isShared ? PATIENT_MS : this.frameMs);
  }

  end() {
    const { screencast } = this.page;
    delete screencast.addClient;
    screencast.removeClient(this.client);
  }
}

module.exports = { serveLiveView };
