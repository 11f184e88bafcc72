// The browser server of pwgrid: one warm browser that serves every client socket the worker hands over.
//
// Run by Playwright's bundled node. Options: JSON in the environment variable PWGRID_LAUNCH (grid/worker/browser_server.py
// writes it). It talks to its worker over Node's own IPC channel (NODE_CHANNEL_FD, JSON lines; grid/worker/channel.py) and
// outlives that worker: the master keeps the other end open until a successor takes over. It opens no TCP port, and lets no
// client open one. It never decides who may connect; the proxy and the worker did that before the socket got here.
//
// How a session ends (every end is reported once, and again on `sync` until it is acknowledged):
//   client  client disconnected · connection lost · protocol error
//   browser browser crashed
//   grid    ping timeout · idle timeout · maximum duration · drain timeout · worker stopped · handshake timed out
//           handshake refused · whatever `close` says
// Idle means: no bytes from the client except pings and pongs. What the browser sends does not count, so that a page that
// logs for ever cannot hold a slot for ever; a client that waits for one answer longer than the limit counts as idle.
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const path = require('node:path');
const { randomBytes } = require('node:crypto');

const CLOSE_GRACE_MS = 3_000; // between our close frame and the hard end of a peer that does not answer it
const STOP_GRACE_MS = 5_000; // for the browser to close by itself, unless `stop` says otherwise
const TEXT_LIMIT_BYTES = 123; // of the reason in a close frame (RFC 6455)
const GOING_AWAY = 1001;
const INTERNAL_ERROR = 1011;

const options = JSON.parse(process.env.PWGRID_LAUNCH);
delete process.env.PWGRID_LAUNCH;

let httpServer = null; // playwright's own, wrapped below
let browserServer = null;
let browserType = null;
let ready = null; // the `ready` message, once said
let browserGone = false;
let stopping = null; // the promise of stop(), once asked for
const sessions = new Map(); // session id -> Session
const unacknowledged = new Map(); // idx -> `closed` message
let closedIdx = 0;
let written = Promise.resolve(); // of the last message said
const kSession = Symbol('session'); // on a socket

// ---------------------------------------------------------------------------------------------------------------- IPC

function say(message) {
  if (process.connected)
    written = new Promise(resolve => process.send(message, undefined, undefined, resolve));
}

function onMessage(message, socket) {
  if (socket)
    return takeSession(message, socket);
  switch (message.do) {
    case 'close':
      return void sessions.get(message.session)?.end('grid', message.reason, message.code);
    case 'ack':
      return void unacknowledged.delete(message.idx);
    case 'ping':
      return say({ say: 'pong', id: message.id });
    case 'canary':
      return void canary(message.id, message.timeoutS * 1000);
    case 'sync':
      say({ say: 'live', sessions: [...sessions.keys()], ready });
      for (const closed of unacknowledged.values())
        say(closed);
      if (browserGone)
        say({ say: 'gone', reason: 'browser disconnected' });
      return;
    case 'stop':
      return void stop(message.graceS === undefined ? STOP_GRACE_MS : message.graceS * 1000);
  }
}

// A worker that was killed in the middle of a long line leaves half of it in Node's buffer, and Node would prepend that to
// every later line for ever. Forget it; the successor repeats its `sync` until it is answered.
function forgetHalfLine() {
  const symbolOf = (object, name) => Object.getOwnPropertySymbols(object).find(each => each.description === name);
  const channel = process[symbolOf(process, 'kChannelHandle')];
  const buffer = channel && symbolOf(channel, 'kJSONBuffer');
  if (buffer)
    channel[buffer] = '';
}

// ----------------------------------------------------------------------------------------------------------- sessions

function takeSession({ session: id, head, deadline }, socket) {
  const session = new Session(id, socket);
  sessions.set(id, session);
  // We were frozen for too long: another worker has this client by now, and the connection is its alone. Closing our copy
  // sends nothing. The deadline is CLOCK_MONOTONIC, as process.hrtime is.
  if (deadline && Number(process.hrtime.bigint()) / 1e9 > deadline)
    return session.end('grid', 'too late');
  if (browserGone || stopping) {
    session.refuse(browserGone ? 'browser' : 'grid', browserGone ? 'browser crashed' : 'worker stopped');
    return;
  }
  httpServer.emit('connection', socket);
  socket.unshift(Buffer.from(head, 'latin1'));
}

class Session {
  constructor(id, socket) {
    this.id = id;
    this.socket = socket;
    this.ws = null;
    this.by = '';
    this.reason = ''; // set once: the first reason is the one that is recorded
    this.errno = '';
    this.startedAt = performance.now();
    this.controlBytes = 0; // pings and pongs of the client, headers included
    this.idleBytes = 0; // client bytes at the last sweep that saw some
    this.idleMs = 0;
    this.silentPings = 0;
    this.pinged = { read: 0, queued: 0, delivered: 0 };
    this.timer = setTimeout(() => this.end('grid', 'handshake timed out'), options.handshakeTimeoutS * 1000);
    socket[kSession] = this;
    socket.on('error', error => { this.errno = error.code; });
    socket.once('close', () => this.closed());
  }

  upgraded(ws) {
    clearTimeout(this.timer);
    this.ws = ws;
    if (!ws) { // playwright answered with an HTTP error, which says why
      this.by = 'grid';
      this.reason = 'handshake refused';
      return;
    }
    const countControl = data => { this.controlBytes += 6 + data.length; };
    ws.on('ping', countControl);
    ws.on('pong', countControl);
    this.idleBytes = this.socket.bytesRead;
    // Playwright closes a socket itself when the browser disconnects or the client breaks the protocol. The client should
    // hear our reason then, and a terminate() right behind the close frame must not swallow it.
    const { close, terminate } = ws;
    this.sendClose = (code, text) => close.call(ws, code, text);
    ws.close = (code, text) => {
      if (ws._closeFrameReceived)
        close.call(ws, code, text);
      else if (!this.reason)
        this.endedByPlaywright(code);
    };
    ws.terminate = () => {
      if (!this.reason)
        terminate.call(ws);
    };
  }

  endedByPlaywright(code) {
    if (code !== undefined && code !== GOING_AWAY)
      this.end('client', `protocol error (${code})`, code);
    else if (stopping)
      this.end('grid', 'worker stopped', GOING_AWAY);
    else
      this.end('browser', 'browser crashed', INTERNAL_ERROR);
  }

  // Ends the session with a close frame that says why, and hard when the peer does not answer it.
  end(by, reason, code = GOING_AWAY) {
    if (this.reason)
      return;
    this.by = by;
    this.reason = reason;
    clearTimeout(this.timer);
    if (!this.ws)
      return void this.socket.destroy();
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
    this.sendClose(code, cut(reason, TEXT_LIMIT_BYTES));
  }

  // The socket came when there is no browser any more: an HTTP answer instead of a handshake.
  refuse(by, reason) {
    this.by = by;
    this.reason = reason;
    const body = JSON.stringify({ error: `${reason}; connect again` });
    this.socket.resume();
    this.socket.end('HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n'
      + `Content-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
  }

  closed() {
    clearTimeout(this.timer);
    sessions.delete(this.id);
    const lost = ['ETIMEDOUT', 'EHOSTUNREACH', 'ENETUNREACH'].includes(this.errno);
    const message = {
      say: 'closed', idx: ++closedIdx, session: this.id,
      bytesIn: this.socket.bytesRead, bytesOut: this.socket.bytesWritten,
      by: this.by || 'client', reason: this.reason || (lost ? 'connection lost' : 'client disconnected'),
    };
    unacknowledged.set(message.idx, message);
    say(message);
    if (!process.connected && !sessions.size)
      stop();
  }

  // Called at a third of the ping timeout. Bytes of any kind are a sign of life, and so is reading what had piled up: a
  // client busy with one large message cannot answer a ping in between. Counted in calls and not by the clock, so that a
  // launcher that was itself stopped for a while does not blame its clients.
  ping() {
    if (!this.ws || this.reason)
      return;
    const handle = this.socket._handle;
    const queued = handle ? handle.writeQueueSize : 0;
    const now = { read: this.socket.bytesRead, queued, delivered: handle ? handle.bytesWritten - queued : 0 };
    const before = this.pinged;
    const alive = now.read !== before.read || (before.queued > 0 && now.delivered > before.delivered) || this.socket.isPaused();
    this.pinged = now;
    this.silentPings = alive ? 0 : this.silentPings + 1;
    if (this.silentPings >= 3)
      this.end('grid', 'ping timeout');
    else
      this.ws.ping();
  }

  sweep(elapsedMs) {
    if (!this.ws || this.reason)
      return;
    const bytes = this.socket.bytesRead - this.controlBytes;
    this.idleMs = bytes > this.idleBytes ? 0 : this.idleMs + elapsedMs;
    this.idleBytes = Math.max(bytes, this.idleBytes);
    if (options.idleTimeoutS && this.idleMs >= options.idleTimeoutS * 1000)
      this.end('grid', 'idle timeout');
    else if (options.maxDurationS && performance.now() - this.startedAt >= options.maxDurationS * 1000)
      this.end('grid', 'maximum duration');
  }
}

function cut(text, limitBytes) {
  let bytes = Buffer.from(text);
  if (bytes.length <= limitBytes)
    return text;
  bytes = bytes.subarray(0, limitBytes);
  return bytes.toString().replace(/\ufffd+$/, ''); // half a character at the cut
}

function endAll(by, reason, code) {
  for (const session of [...sessions.values()])
    session.end(by, reason, code);
}

function watchSessions() {
  if (options.pingTimeoutS)
    setInterval(() => sessions.forEach(session => session.ping()), options.pingTimeoutS * 1000 / 3).unref();
  const shortestS = Math.min(options.idleTimeoutS || Infinity, options.maxDurationS || Infinity);
  if (shortestS === Infinity)
    return;
  const periodMs = Math.min(Math.max(shortestS * 100, 50), 1000);
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    const elapsedMs = Math.min(now - last, 2 * periodMs); // a pause of the launcher is no silence of the client
    last = now;
    sessions.forEach(session => session.sweep(elapsedMs));
  }, periodMs).unref();
}

// ------------------------------------------------------------------------------------------------------------ browser

// playwright-core makes its HTTP server with http.createServer() and lets it listen on a TCP port. Ours listens on a Unix
// socket in the worker's private directory. Nothing else here may listen, or a client could open a public port of this host
// with browser.bind(); but client certificates work through a SOCKS proxy on the loopback, which is no HTTP server.
function wrapListening() {
  const { createServer } = http;
  const { listen } = net.Server.prototype;
  http.createServer = function(...args) {
    const server = createServer.apply(this, args);
    if (!httpServer) {
      httpServer = server;
      server.listen = (...listenArgs) => {
        fs.rmSync(options.socketPath, { force: true });
        return listen.call(server, { path: options.socketPath }, listenArgs.find(each => typeof each === 'function'));
      };
    }
    return server;
  };
  net.Server.prototype.listen = function(port, host, ...rest) {
    if (this instanceof http.Server || typeof port !== 'number' || host !== '127.0.0.1')
      throw new Error('this grid lets no client open a port or socket on its host');
    return listen.call(this, port, host, ...rest);
  };
}

// Stock Firefox up to 158 does not know a command without which playwright makes no context. Where the browser says so, the
// command gets an empty success; a browser that knows it is left alone.
function shimBidi(utils) {
  const OPTIONAL = 'emulation.setMediaFeaturesOverride';
  const { send, emit } = utils.ws.prototype;
  const pending = new Set();
  let unknown = false;
  const succeed = id => Buffer.from(JSON.stringify({ type: 'success', id, result: {} }));
  utils.ws.prototype.send = function(data, ...rest) {
    if (this._isServer || typeof data !== 'string' || !data.includes(OPTIONAL))
      return send.call(this, data, ...rest);
    const { id, method } = JSON.parse(data);
    if (method !== OPTIONAL)
      return send.call(this, data, ...rest);
    if (unknown)
      return void process.nextTick(() => emit.call(this, 'message', succeed(id), false));
    pending.add(id);
    return send.call(this, data, ...rest);
  };
  utils.ws.prototype.emit = function(event, data, ...rest) {
    if (event === 'message' && pending.size && !this._isServer) {
      const { id, error } = JSON.parse(data.toString());
      if (pending.delete(id) && error === 'unknown command') {
        unknown = true;
        return emit.call(this, event, succeed(id), false);
      }
    }
    return emit.call(this, event, data, ...rest);
  };
}

async function launch() {
  wrapListening();
  const stock = options.channel && options.channel.startsWith('moz-firefox');
  if (stock)
    shimBidi(require(path.join(options.playwrightCore, 'lib', 'utilsBundle')));
  const playwright = require(options.playwrightCore);
  const { version } = require(path.join(options.playwrightCore, 'package.json'));
  browserType = playwright[options.browserType];
  const wsPath = '/' + randomBytes(16).toString('hex');
  const launchOptions = {
    wsPath, headless: options.headless, args: options.args, timeout: options.launchTimeoutS * 1000,
    handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false,
  };
  if (options.executablePath)
    launchOptions.executablePath = options.executablePath;
  if (options.channel)
    launchOptions.channel = options.channel;
  if (options.browserType === 'chromium')
    launchOptions.chromiumSandbox = options.chromiumSandbox;
  if (options.browserType === 'firefox')
    launchOptions.firefoxUserPrefs = options.firefoxUserPrefs;
  browserServer = await browserType.launchServer(launchOptions);
  const browserProcess = browserServer.process();
  browserProcess.once('exit', onBrowserExit);
  if (browserProcess.exitCode !== null || browserProcess.signalCode !== null)
    onBrowserExit();
  // Behind playwright's own listener, which upgrades synchronously.
  httpServer.on('upgrade', (request, socket) => {
    socket[kSession]?.upgraded(webSocketOf(socket));
  });
  ready = {
    say: 'ready', pid: process.pid, browserPid: browserProcess.pid, browserVersion: '', playwrightVersion: version, wsPath,
  };
  ready.browserVersion = await tryBrowser(options.launchTimeoutS * 1000);
}

function webSocketOf(socket) {
  const symbol = Object.getOwnPropertySymbols(socket).find(each => each.description === 'websocket');
  return symbol && socket[symbol];
}

function onBrowserExit() {
  if (browserGone || stopping)
    return;
  browserGone = true;
  endAll('browser', 'browser crashed', INTERNAL_ERROR);
  if (ready)
    say({ say: 'gone', reason: 'browser disconnected' });
  if (!process.connected)
    stop();
}

// What a client does: connect, context, page, evaluate. Returns the browser's version.
async function tryBrowser(timeoutMs) {
  let browser;
  let timer;
  const attempt = async () => {
    browser = await browserType.connect(`ws+unix://${options.socketPath}:${ready.wsPath}`, { timeout: timeoutMs });
    const context = await browser.newContext();
    const page = await context.newPage();
    if (await page.evaluate('6 * 7') !== 42)
      throw new Error('the browser cannot compute 6 * 7');
    await context.close();
    return browser.version();
  };
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no context, page and evaluate within ${timeoutMs / 1000} s`)), timeoutMs);
  });
  const attempted = attempt();
  attempted.catch(() => {}); // it may fail long after the timeout
  try {
    return await Promise.race([attempted, late]);
  } finally {
    clearTimeout(timer);
    browser?.close().catch(() => {});
  }
}

async function canary(id, timeoutMs) {
  const started = performance.now();
  let error = null;
  try {
    await tryBrowser(timeoutMs);
  } catch (failure) {
    error = browserGone ? 'browser disconnected' : String(failure.message);
  }
  say({ say: 'canary', id, ok: error === null, error, ms: Math.round(performance.now() - started) });
}

// --------------------------------------------------------------------------------------------------------------- ends

function stop(graceMs = STOP_GRACE_MS) {
  stopping ??= (async () => {
    // The unconditional end: whatever hangs below, this process and its browser are gone a little after the grace.
    setTimeout(() => {
      browserServer?.kill().catch(() => {});
      setTimeout(() => process.exit(0), 500);
    }, graceMs);
    endAll('grid', 'worker stopped', GOING_AWAY);
    httpServer?.close();
    await browserServer?.close().catch(() => {});
    while (sessions.size)
      await new Promise(resolve => [...sessions.values()][0].socket.once('close', resolve));
    await written;
    process.exit(0);
  })();
  return stopping;
}

// Worker and master are both gone: serve the live sessions on, then leave nothing behind.
function onOrphaned() {
  if (!ready || browserGone || !sessions.size)
    return void stop();
  setTimeout(() => {
    endAll('grid', 'drain timeout', GOING_AWAY);
    stop();
  }, options.drainTimeoutS * 1000);
}

function onUncaught(error) {
  if (error instanceof SyntaxError && String(error.stack).includes('parseChannelMessages'))
    return forgetHalfLine();
  // One client's trouble inside playwright must not end every session here; the canary notices a server that is broken.
  console.error(error);
}

async function main() {
  process.on('SIGINT', () => {});
  process.on('SIGHUP', () => {});
  process.on('SIGTERM', () => stop());
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {}); // its reader may be dead
  process.on('message', onMessage);
  process.on('disconnect', onOrphaned);
  try {
    await launch();
  } catch (error) {
    say({ say: 'failed', error: String(error.message) });
    await written;
    await browserServer?.kill().catch(() => {});
    process.exit(1);
  }
  process.on('uncaughtException', onUncaught);
  process.on('unhandledRejection', onUncaught);
  watchSessions();
  say(ready);
  if (browserGone)
    say({ say: 'gone', reason: 'browser disconnected' });
}

main();
