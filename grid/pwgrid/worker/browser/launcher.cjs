// The browser server: serves every client socket that the worker hands over, by a warm browser that all clients share, or by one of
// the session's own.
//
// Playwright's bundled Node runs it. Its options are JSON in the variable PWGRID_LAUNCH (pwgrid/worker/browser/launch.py). It
// talks to its worker over Node's IPC (NODE_CHANNEL_FD, JSON lines; pwgrid/worker/browser/node_link.py) and outlives that
// worker: the master keeps the other end open until a successor takes over. It opens no TCP port, and lets no client open
// one. The proxy and the worker have decided before who may connect.
//
// How a session ends (each end is reported once, and again on `sync` until it is acknowledged):
//   client  client disconnected · connection lost · protocol error · client closed the browser
//   browser browser crashed · browser connection broken
//   grid    ping timeout · idle timeout · maximum duration · drain timeout · worker stopped · handshake refused
//           too late · memory limit · message failed · too much work · the client does not read · keep time over · the reason in a `close` or
//           `cut_hanging` message
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const nodeModule = require('node:module');
const path = require('node:path');
const tls = require('node:tls');
const { AsyncLocalStorage } = require('node:async_hooks');

const options = JSON.parse(process.env.PWGRID_LAUNCH);
delete process.env.PWGRID_LAUNCH;
delete process.env.MALLOC_MMAP_THRESHOLD_; // no matter of the browser's
// For requests of clients that Node sends. With DHE the server says how much is computed (more than a second for 10,000 bits), so
// browsers do not have it any more either.
tls.DEFAULT_CIPHERS += ':!DHE';
// Compiling playwright-core is a fifth of a start's cost: the first browser server of a grid saves it for the others.
if (options.codeCache)
  nodeModule.enableCompileCache(options.codeCache);

const { CdpConnection, CdpFront } = require('./cdp/cdp_front.cjs');
const { LoopbackPorts } = require('./guard/loopback_ports.cjs');
const { Clients } = require('./clients/clients.cjs');
const { confineProcesses } = require('./units/confined_processes.cjs');
const { answer, kConnection } = require('./sessions/connection.cjs');
const { ErrorCounts } = require('./error_counts.cjs');
const { serveLiveView } = require('./live_view.cjs');
const { OwnBrowsers } = require('./units/own_browsers.cjs');
const { PlaywrightConnection } = require('./sessions/playwright_front.cjs');
const { loadDriver } = require('./playwright/driver.cjs');
const { watchServers } = require('./playwright/servers.cjs');
const { succeedAtOptional } = require('./playwright/stock_firefox.cjs');
const { webSocketOf } = require('./playwright/web_sockets.cjs');
const { INTERNAL_ERROR, Session } = require('./sessions/session.cjs');
const { watchTimeouts } = require('./sessions/session_timeouts.cjs');
const { Unit } = require('./units/unit.cjs');
const { SessionInWork } = require('./session_in_work.cjs');

const MOST_CLIENTS = 64; // of one session in CDP: it has one slot, however many they are
const STOP_GRACE_MS = 5_000; // for the browser to close by itself, unless `stop` says otherwise

let browserType = null;
let clients = null;
let cdpServer = null; // of the WebSockets of CDP clients
let loopbackPorts = null;
let shared = null; // the unit that all clients share; null in a pool where each session has its own
let own = null; // of class OwnBrowsers
const units = new Map(); // process of a browser -> unit
const launching = new AsyncLocalStorage(); // the unit whose browser is being launched
let unitNumber = 0; // of the last one
let ready = null; // the `ready` message, once the browser is launched
let gone = null; // the `gone` message, once the browser has ended or cannot be understood any more
let stopping = null; // the promise of stop(), once called
const sessions = new Map(); // session id -> Session
const unacknowledged = new Map(); // idx -> `closed` message
let closedIdx = 0;
let written = Promise.resolve(); // done when the last message is written
const errors = new ErrorCounts(say);
const sessionInWork = new SessionInWork(options.inWork);
const server = { // what every session gets
  options, sessionInWork, isStopping: () => stopping !== null, mayKeep: () => process.connected && !stopping, onOver,
  onKept: session => say({ say: 'kept', session: session.id, keptS: session.keptTime.leftS }),
  onResumed: session => say({ say: 'resumed', session: session.id }),
};

// ws takes the path of a socket from a URL as it stands there, where a blank is %20, and ends it at the first colon. By way of
// the open directory every path can be written. O_PATH is none of Node's constants.
const O_PATH = 0o10000000;
const socketDirectory = fs.openSync(path.dirname(options.socketPath), O_PATH);
const urlOf = unit => `ws+unix:///proc/self/fd/${socketDirectory}/${path.basename(unit.socketPath)}:${unit.wsPath}`;

// ---------------------------------------------------------------------------------------------------------------- IPC

function say(message) {
  if (process.connected)
    written = new Promise(resolve => process.send(message, undefined, undefined, resolve));
}

function onMessage(message, socket) {
  if (socket)
    return takeClient(message, socket);
  switch (message.do) {
    case 'close':
      return void endSession(message);
    case 'ack':
      return void unacknowledged.delete(message.idx);
    case 'ping':
      return say({ say: 'pong', id: message.id, browserSilentMs: Math.round(shared?.messages.silentMs() ?? 0) });
    case 'ask_browser': // own browsers are asked by their units
      return void Promise.resolve(shared?.signs.ask()).then(() => say({ say: 'browser_answered', id: message.id }), () => {}); // it has ended
    case 'cut_hanging':
      return shared?.signs.cutHanging(message.kind, message.afterS * 1000);
    case 'acquire':
      return void acquire(message);
    case 'give_back':
      return own.giveBack(message.session);
    case 'end_browser':
      return sessionOfBrowser(message.pid)?.end('grid', message.kind);
    case 'hold_warm':
      return own.hold(message.isHeld);
    case 'no_more_clients':
      return own.close();
    case 'canary':
      return void canary(message.id, message.timeoutS * 1000);
    case 'sync':
      own?.giveBackAll();
      say({ say: 'live', sessions: [...sessions.keys()], clientFields: clientFields(), kept: kept(), profiles: profiles(), ready });
      for (const session of [...sessions.values()].filter(each => each.isOver)) // its browser writes a profile
        say({ say: 'ending', session: session.id });
      for (const closed of unacknowledged.values())
        say(closed);
      if (gone)
        say(gone);
      return;
    case 'stop':
      return void stop(message.graceS === undefined ? STOP_GRACE_MS : message.graceS * 1000);
  }
}

// A worker that was killed in the middle of a long line leaves half of it in Node's buffer, and Node would prepend that to
// every later line. This empties the buffer; the successor repeats its `sync` until it is answered.
function forgetHalfLine() {
  const channel = process[symbolOf(process, 'kChannelHandle')];
  const buffer = channel && symbolOf(channel, 'kJSONBuffer');
  if (buffer)
    channel[buffer] = '';
}

function symbolOf(object, name) {
  return Object.getOwnPropertySymbols(object).find(each => each.description === name);
}

// ----------------------------------------------------------------------------------------------------------- sessions

// What the worker was told of its sessions, by their ids, for its successor; of some it was told nothing.
function clientFields() {
  return Object.fromEntries([...sessions.values()].filter(each => each.clientFields).map(each => [each.id, each.clientFields]));
}

// For how many seconds those are still kept that have no client, by their ids.
function kept() {
  return Object.fromEntries([...sessions.values()].filter(each => each.isKept).map(each => [each.id, each.keptTime.leftS]));
}

// The profiles of sessions that live or whose end the worker may not know yet, by their ids.
function profiles() {
  const live = [...sessions.values()].map(each => [each.id, each.unit?.profile]);
  const over = [...unacknowledged.values()].map(each => [each.session, each.profile]);
  return Object.fromEntries([...live, ...over].filter(([, profile]) => profile));
}

// Gets a browser for one session alone, and says when it is there. The session's client comes later.
async function acquire({ id, session, options: wished, profile }) {
  const error = await own.acquire(session, wished, profile).then(() => null, failure => String(failure.message));
  say({ say: 'acquired', id, error });
}

// Serves a client. `joins`: it is one more connection of a session that is there.
function takeClient(offer, socket) {
  // After the deadline (this process was frozen) another worker has this client and its connection. Closing this copy of the
  // socket sends nothing. The deadline is CLOCK_MONOTONIC, as process.hrtime is.
  const isLate = offer.deadline && Number(process.hrtime.bigint()) / 1e9 > offer.deadline;
  if (offer.joins)
    return isLate ? void socket.destroy() : joinSession(offer, socket);
  const unit = offer.own ? own.take(offer.session) : shared;
  const session = new Session(offer.session, server, unit, offer);
  sessions.set(session.id, session);
  const Front = offer.protocol === 'cdp' ? CdpConnection : PlaywrightConnection;
  const connection = new Front(session, socket, offer);
  if (isLate)
    return session.end('grid', 'too late');
  // A proxy that gets no answer knows by this mark that the browser server has its client (pwgrid/common/client_marks.py).
  socket.setNoDelay(true);
  if (gone || !unit || unit.isGoing || unit.hasEnded)
    return refuse(connection, 'browser', gone?.sessions ?? 'browser crashed');
  if (stopping)
    return refuse(connection, 'grid', 'worker stopped');
  admit(connection, offer, () => {
    if (Front === CdpConnection)
      session.cdp = new CdpFront(session, options, { directories: clients.directories, loopbackPorts, onError: error => onError(unit, error) });
  });
}

function joinSession(offer, socket) {
  socket.setNoDelay(true); // the mark
  const session = sessions.get(offer.session);
  if (!session?.cdp || session.kind || session.isOver)
    return void answer(socket, '410 Gone', 'this session has ended; connect again without its id');
  if (session.connections.size >= MOST_CLIENTS)
    return void answer(socket, '503 Service Unavailable', `this session has ${MOST_CLIENTS} clients already: let some of them go`);
  if (offer.keepS) // what the last one says counts
    session.keptTime.limitS = offer.keepS;
  admit(new CdpConnection(session, socket, offer), offer);
}

// Answers a client that came when the browser had ended or this process was stopping.
function refuse(connection, by, kind) {
  connection.session.reasonIs(by, kind);
  connection.refuse('503 Service Unavailable', `${kind}; connect again`);
}

// Answers the handshake, after `prepare()`.
function admit(connection, { network, headers, early }, prepare = () => {}) {
  const { session, socket } = connection;
  const request = requestOf(session.unit.wsPath, headers, socket);
  const bytes = Buffer.from(early, 'latin1');
  try {
    prepare();
    if (session.cdp)
      connection.open(cdpServer, request, bytes);
    else
      clients.admit(session, network ?? '', () => session.unit.httpServer.emit('upgrade', request, socket, bytes));
  } catch (error) {
    console.error(error);
  }
  if (!connection.ws)
    connection.fail('grid', 'handshake refused');
}

// The request of a client's upgrade, for Playwright's HTTP server. The proxy has parsed the head, so that no second parser is
// needed here. `headers` are those of the client that the proxy passes on, with names in lower case.
function requestOf(url, headers, socket) {
  const request = new http.IncomingMessage(socket);
  request.method = 'GET';
  request.url = url;
  request.httpVersion = '1.1';
  Object.assign(request.headers, headers);
  return request;
}

// A browser with a profile ends first: it writes its profile then, and the worker saves that when it hears of the end.
async function onOver(session, report) {
  const { unit } = session;
  const profile = unit?.profile;
  own.release(unit);
  if (session.cdp)
    clients.memory.clientLeft();
  if (profile) {
    say({ say: 'ending', session: session.id });
    await unit.end();
    report.profile = { ...profile, isInOrder: unit.isInOrder };
  }
  sessions.delete(session.id);
  const message = { say: 'closed', idx: ++closedIdx, session: session.id, lease: session.clientFields?.lease, ...report };
  unacknowledged.set(message.idx, message);
  say(message);
  if (!process.connected && !sessions.size)
    stop();
}

// Nobody can come back to those that are kept.
function endKept() {
  for (const session of [...sessions.values()].filter(each => each.isKept))
    session.end('grid', 'worker stopped');
}

// `isKept`: only if it is, for its client may have come back meanwhile.
function endSession({ session: id, reason: { kind, detail }, code, text, isKept }) {
  const session = sessions.get(id);
  if (session && !(isKept && !session.isKept))
    session.end('grid', kind, code, { detail, text });
}

function endAll(by, kind, code) {
  for (const session of [...sessions.values()])
    session.end(by, kind, code);
}

// ------------------------------------------------------------------------------------------------------------ browser

async function launch() {
  wrapListening();
  confineProcesses(options, () => launching.getStore());
  const driver = loadDriver(options.playwrightCore);
  if (options.channel.startsWith('moz-firefox'))
    succeedAtOptional(driver);
  watchServers(driver, browser => { launching.getStore().browser = browser; });
  cdpServer = CdpConnection.server(driver.WebSocketServer);
  loopbackPorts = new LoopbackPorts((times, uid) => say({ say: 'refused', times, uid }));
  clients = new Clients(driver, options, loopbackPorts, browser => units.get(browser.options.browserProcess.process), {
    onCall: (client, message) => client.unit.signs?.began(client, message),
    onAnswer: (client, message) => client.unit.signs?.answered(client, message),
    onGone: client => client.unit.signs?.gone(client),
    onConnectionError: (client, error) => errors.note('client', error, client.session.id),
  });
  browserType = driver.playwright[options.browserType];
  own = new OwnBrowsers({
    launch: (wished, profile) => launchUnit(false, wished, profile),
    warmUp: unit => tryBrowser(unit, options.launchTimeoutS * 1000),
    warm: options.warm, most: options.mostOwn,
    // Where there is a shared browser, which is at work, who asks for one of its own hears why there is none.
    onCannotLaunch: error => shared ? own.cool() : onBrowserGone('browser crashed', { kind: 'launch failed', detail: String(error.message) }),
  });
  const unit = await launchUnit(options.isolation !== 'browser');
  if (unit.isShared)
    shared = unit;
  const { pid } = process, browserPid = unit.process.pid;
  const browserVersion = await tryBrowser(unit, options.launchTimeoutS * 1000);
  ready = { say: 'ready', pid, browserPid, browserVersion, playwrightVersion: driver.version };
  if (!shared)
    own.add(unit);
}

// `wished`: what a client wants to be otherwise than in the pool, by Playwright's names; and `browser`, if it is to be another one: its
// executablePath and channel, the words `before` its command that confine it, and what is different in its environment. `profile`: that
// of a Unit.
async function launchUnit(isShared, { browser = null, ...wished } = {}, profile = null) {
  const number = ++unitNumber;
  const unit = new Unit({
    isShared,
    socketPath: isShared ? options.socketPath : path.join(path.dirname(options.socketPath), `own-${number}.s`),
    directory: isShared ? null : path.join(options.ownDirectory, String(number)), profile,
    signAfterMs: options.signAfterS * 1000, silentMs: options.silentS * 1000,
    before: browser?.before,
    hooks: { onExit, onGoing: each => each.kill(), onSign, onHung, onDropped, onBroken, onError },
  });
  const { headless, args, chromiumSandbox, firefoxUserPrefs } = options; // Playwright ignores what is for another browser
  if (wished.proxy)
    wished.proxy = await loopbackPorts.settledProxy(wished.proxy, isShared);
  unit.makeDirectory();
  try {
    const launched = await launching.run(unit, () => clients.forNobody(() => browserType.launchServer({
      wsPath: unit.wsPath, headless, chromiumSandbox, timeout: options.launchTimeoutS * 1000,
      proxy: options.proxy ?? undefined, env: browser ? { ...process.env, ...browser.environment } : undefined,
      handleSIGINT: false, handleSIGTERM: false, handleSIGHUP: false,
      executablePath: (browser ?? options).executablePath || undefined, channel: (browser ?? options).channel || undefined,
      ...wished, args: [...args, ...wished.args ?? []], firefoxUserPrefs: { ...wished.firefoxUserPrefs, ...firefoxUserPrefs },
    })));
    units.set(launched.process(), unit);
    unit.launched(launched);
    if (unit.hasEnded)
      throw new Error('it ended as soon as it had started');
    clients.knows(unit);
  } catch (error) {
    unit.removeDirectory();
    throw error;
  }
  // Runs after Playwright's own listener, which upgrades synchronously.
  unit.httpServer.on('upgrade', (request, socket) => {
    socket[kConnection]?.upgraded(webSocketOf(socket));
  });
  return unit;
}

function onExit(unit, code, signal) {
  units.delete(unit.process);
  const why = { kind: 'browser ended', detail: signal ?? `exit ${code}`, signal: signal ?? '' };
  if (unit.isShared)
    return onBrowserGone('browser crashed', why);
  own.ended(unit);
  sessionOf(unit)?.end('browser', 'browser crashed', INTERNAL_ERROR);
}

function onDropped(unit, what, bytes) {
  errors.note('too long', `${what} of ${bytes} bytes`);
}

// In what the browser says. That of one session alone is that session's matter.
function onError(unit, error) {
  errors.note(unit.isShared ? 'browser' : 'client', error, sessionOf(unit)?.id);
}

function onBroken(unit, error) {
  onError(unit, error);
  if (unit.isShared)
    return onBrowserGone('browser connection broken', { kind: 'browser unreadable', detail: error.message });
  sessionOf(unit)?.end('browser', 'browser connection broken', INTERNAL_ERROR);
}

// A sign that a browser is sick. The worker tries the shared one; another one is tried here, and matters to nobody else.
async function onSign(unit, what) {
  if (unit.isShared)
    return say({ say: 'sign', what });
  if (unit.tried)
    return;
  const { opened } = unit.signs, { holds } = unit.messages;
  await tryBrowser(unit, options.tryS * 1000).catch(() => {
    // Else it is only slow: its client has got a page meanwhile, or has kept the grid from hearing it.
    if (unit.signs.opened === opened && unit.messages.holds === holds)
      sessionOf(unit)?.end('grid', 'browser sick');
  });
}

// A browser of one session alone does not answer any more.
function onHung(unit) {
  sessionOf(unit)?.end('grid', 'browser hung');
  unit.kill();
}

// The session that has this browser alone, once its client has come.
function sessionOf(unit) {
  return unit.isShared ? undefined : [...sessions.values()].find(each => each.unit === unit);
}

// The session that has the browser of this pid alone.
function sessionOfBrowser(pid) {
  const unit = [...units.values()].find(each => each.process.pid === pid);
  return unit && sessionOf(unit);
}

// `why` is a reason for the worker (pwgrid/common/reasons.py), `kind` that of the sessions' ends.
function onBrowserGone(kind, why) {
  if (gone || stopping)
    return;
  gone = { say: 'gone', reason: why, sessions: kind };
  endAll('browser', kind, INTERNAL_ERROR);
  if (ready)
    say(gone);
  if (!process.connected)
    stop();
}

// Does what a client does: connect, context, page, evaluate. Returns the browser's version. In a CDP session without its clients' noticing.
async function tryBrowser(unit, timeoutMs) {
  const tried = unit.tried = sessionOf(unit)?.cdp?.tryBrowser(timeoutMs) ?? attemptAt(unit, timeoutMs);
  try {
    return await tried;
  } finally {
    if (unit.tried === tried)
      unit.tried = null;
  }
}

async function attemptAt(unit, timeoutMs) {
  let browser;
  let timer;
  const attempt = async () => {
    browser = await browserType.connect(urlOf(unit), { timeout: timeoutMs });
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
  try {
    return await Promise.race([attempt(), late]);
  } finally {
    clearTimeout(timer);
    browser?.close().catch(() => {});
  }
}

async function canary(id, timeoutMs) {
  const started = performance.now();
  const unit = shared ?? own.warm[0];
  const opened = unit?.signs?.opened;
  let error = null;
  try {
    if (unit) // else all are in use, and each start shows whether browsers start
      await tryBrowser(unit, timeoutMs);
  } catch (failure) {
    if (unit.isShared ? gone || unit.signs.opened === opened : !unit.hasEnded) // else it is only slow: a client has got a page meanwhile
      error = gone ? `${gone.reason.kind}: ${gone.reason.detail}` : String(failure.message);
    if (error && !unit.isShared) // the next try is of another one: that may be all that is wrong
      own.opensNoPage(unit, failure);
  }
  say({ say: 'canary', id, ok: error === null, error, ms: Math.round(performance.now() - started) });
}

// ---------------------------------------------------------------------------------- patches to playwright-core and Node

// playwright-core makes an HTTP server for each browser with http.createServer() and lets it listen on a TCP port. Here it listens on a
// Unix socket in the worker's private directory. Other servers may not listen, or a client could open a public port of this host
// with browser.bind(). The exception is no HTTP server: a proxy for a context with client certificates (loopback_ports.cjs), or for a
// client's network (client_network.cjs).
function wrapListening() {
  const { createServer } = http;
  const { listen } = net.Server.prototype;
  http.createServer = function(...args) {
    const server = createServer.apply(this, args);
    const unit = launching.getStore();
    if (unit && !unit.httpServer) {
      unit.httpServer = server;
      server.listen = (...listenArgs) => {
        fs.rmSync(unit.socketPath, { force: true });
        return listen.call(server, { path: unit.socketPath }, listenArgs.find(each => typeof each === 'function'));
      };
    }
    return server;
  };
  net.Server.prototype.listen = function(port, host, ...rest) {
    const client = clients.inWork();
    if (this instanceof http.Server || typeof port !== 'number' || host !== '127.0.0.1' || !client)
      throw new Error('this grid lets no client open a port or socket on its host');
    return loopbackPorts.listen(this, client.unit, ...rest);
  };
}

// --------------------------------------------------------------------------------------------------------------- ends

function stop(graceMs = STOP_GRACE_MS) {
  stopping ??= (async () => {
    // Whatever hangs below, this process and its browsers end half a second after the grace.
    setTimeout(() => {
      units.forEach(each => each.kill());
      setTimeout(() => process.exit(0), 500);
    }, graceMs);
    endAll('grid', 'worker stopped');
    own?.close();
    await Promise.all([...units.values()].map(each => each.end()));
    await Promise.all([...sessions.values()].map(each => each.whenOver));
    await written;
    process.exit(0);
  })();
  return stopping;
}

// Worker and master are both gone: the live sessions may go on for DRAIN_TIMEOUT, then this process ends.
function onOrphaned() {
  own?.close();
  endKept();
  if (!ready || gone || !sessions.size)
    return void stop();
  setTimeout(() => {
    endAll('grid', 'drain timeout');
    stop();
  }, options.drainTimeoutS * 1000);
}

function onUncaught(error) {
  if (error instanceof SyntaxError && String(error.stack).includes('parseChannelMessages'))
    return forgetHalfLine();
  // What goes on in the background for one client is that client's matter: its connection is whole, and its calls have time limits.
  // An error that may concern others makes the worker try the browser.
  const client = clients.running.getStore();
  errors.note(client ? 'client' : 'other', error, client?.session.id);
}

async function main() {
  process.on('SIGINT', () => {});
  process.on('SIGHUP', () => {});
  process.on('SIGTERM', () => stop());
  process.stdout.on('error', () => {});
  process.stderr.on('error', () => {}); // the worker, which reads it, may be dead
  process.on('message', onMessage);
  process.on('disconnect', onOrphaned);
  try {
    await launch();
  } catch (error) {
    say({ say: 'failed', error: String(error.message) });
    await written;
    units.forEach(each => each.kill());
    process.exit(1);
  }
  process.on('uncaughtException', onUncaught);
  process.on('unhandledRejection', onUncaught);
  watchTimeouts(sessions, options);
  if (options.liveView)
    serveLiveView(options.liveView, options.browserType, id => sessions.get(id)?.pages() ?? null);
  say(ready);
  if (gone)
    say(gone);
  if (options.codeCache)
    nodeModule.flushCompileCache();
}

main();
