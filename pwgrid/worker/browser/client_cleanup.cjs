// Clients at Playwright's dispatcher, where their messages are parsed already: stops what guard.cjs refuses, and removes with
// a client what it made on the host or in the browser beside its contexts (files, processes, contexts over CDP).
'use strict';

const childProcess = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { AsyncLocalStorage } = require('node:async_hooks');

const { ENDS_THE_SESSION, isWellFormed, judge } = require('./guard.cjs');

const GOING_GRACE_MS = 5_000; // for a browser that a client has told to end
const MALFORMED = 1007; // playwright's own code for a message that is not JSON
const ENDED_BY_CLIENT = 'client closed the browser';
const kClient = Symbol('client'); // property of a Playwright connection

class Client {
  // `clients`: those of this browser server
  constructor(session, clients) {
    this.session = session;
    this.clients = clients;
    this.connection = null;
    this.processes = new Set();
    this.madeOverCdp = []; // the CDP commands that undo what it made
    this.reused = null; // its view of the browser, with a context for reuse of its own
    this.directory = '';
    this.files = []; // outside its directory, like a video that starts with its page
    // what the rules in guard.cjs read
    this.guard = clients.options.clientGuard;
    this.isShared = clients.options.slots > 1;
    this.blocksFileUrls = clients.options.blockFileUrls;
    this.ownsTracing = false;
    this.isBrowserLevel = false;
    this.baseUrl = undefined;
  }

  // Returns whether Playwright gets the message. If not, answers it or ends the session.
  allows(connection, message) {
    if (!isWellFormed(message)) {
      this.session.end('client', `protocol error (${MALFORMED})`, MALFORMED);
      return false;
    }
    const dispatcher = connection._dispatcherByGuid.get(message.guid);
    if (!dispatcher)
      return true;
    if (message.method === 'send')
      this.isBrowserLevel = dispatcher._parent?._type === 'Browser';
    else if (message.method === 'goto')
      this.baseUrl = dispatcher._object._page?.browserContext._options.baseURL;
    const verdict = judge(dispatcher._type, message.method, message.params, this);
    if (!verdict)
      return true;
    if (verdict === ENDS_THE_SESSION) {
      connection.onmessage({ id: message.id, result: { result: {} } });
      setImmediate(() => this.session.end('client', ENDED_BY_CLIENT)); // after that answer
    } else {
      connection.onmessage({ id: message.id, error: { error: { name: 'Error', message: verdict, stack: '' } } });
    }
    return false;
  }

  // Called for each new object of this client, before Playwright uses it.
  made(dispatcher) {
    if (dispatcher._type === 'Browser')
      this.ownBrowser(dispatcher);
    else if (dispatcher._type === 'CDPSession')
      this.ownCdpSession(dispatcher);
    else if (dispatcher._type === 'Artifact')
      this.files.push(dispatcher._object.localPath());
    else if (dispatcher._type === 'Playwright')
      override(dispatcher, 'cleanup', async cleanup => {
        await cleanup();
        await this.end();
      });
  }

  // Returns its pages by id, the newest last.
  pages() {
    const dispatchers = [...this.connection?._dispatcherByGuid.values() ?? []];
    return new Map(dispatchers.filter(each => each._type === 'Page').map(each => [each._guid, each._object]));
  }

  ownBrowser(dispatcher) {
    const browser = dispatcher._object;
    override(dispatcher, 'newContextForReuse', async (newContextForReuse, params, progress) => {
      if (params.recordVideo)
        params.recordVideo.dir = undefined; // as Playwright does for newContext
      const made = await this.clients.reusing(this, browser, () => newContextForReuse(params, progress));
      dispatcher._isolatedContexts.add(this.reused._contextForReuse.context);
      return made;
    });
    override(dispatcher, 'disconnectFromReusedContext', (disconnect, params, progress) =>
      this.clients.reusing(this, browser, () => disconnect(params, progress)));
    override(dispatcher, 'startTracing', async (startTracing, params, progress) => {
      await startTracing(params, progress);
      this.ownsTracing = true;
    });
    override(dispatcher, 'stopTracing', async (stopTracing, params, progress) => {
      this.ownsTracing = false;
      return await stopTracing(params, progress);
    });
  }

  ownCdpSession(dispatcher) {
    override(dispatcher, 'send', async (send, params, progress) => {
      const { method } = params;
      const ends = method === 'Browser.close' || method === 'Browser.crash';
      if (ends)
        this.clients.browserIsGoing(true);
      try {
        const answer = await send(params, progress);
        if (method === 'Target.createBrowserContext')
          this.madeOverCdp.push(['Target.disposeBrowserContext', { browserContextId: answer.result.browserContextId }]);
        else if (method === 'Target.createTarget')
          this.madeOverCdp.push(['Target.closeTarget', { targetId: answer.result.targetId }]);
        return answer;
      } catch (error) {
        if (ends && this.clients.browser.isConnected()) // the browser has refused it on this CDP session
          this.clients.browserIsGoing(false);
        throw error;
      }
    });
  }

  // Called when its connection is over and its contexts are closed.
  async end() {
    const { browser } = this.clients;
    for (const made of this.processes)
      killGroup(made);
    if (this.ownsTracing) // fails where a page was recorded, which is gone by now and its record with it
      await browser.stopTracing().catch(() => { browser._tracingRecording = false; });
    for (const [method, params] of this.madeOverCdp)
      await browser._session.send(method, params).catch(() => {});
    for (const made of [this.directory, ...this.files].filter(Boolean))
      if (!removeIfEmpty(made))
        await fs.promises.rm(made, { recursive: true, force: true }).catch(console.error);
  }
}

class Clients {
  // `onGoing` is called GOING_GRACE_MS after the browser has begun to end
  constructor(playwright, options, onGoing) {
    this.options = options;
    this.onGoing = onGoing;
    this.browser = null;
    this.isBrowserGoing = false;
    this.going = null;
    this.running = new AsyncLocalStorage(); // the client whose message is being dispatched
    this.arriving = null;
    this.reusingNow = null;
    this.lastDirectory = 0;
    this.wrapDispatcher(playwright._connection.toImpl(playwright._connection));
    this.wrapSpawn();
  }

  // Runs `upgrade`, in which Playwright makes this session's connection.
  admit(session, upgrade) {
    this.arriving = session.client = new Client(session, this);
    try {
      upgrade();
    } finally {
      this.arriving = null;
    }
  }

  wrapDispatcher(connection) {
    const clients = this;
    const prototype = Object.getPrototypeOf(connection);
    const { dispatch, registerDispatcher } = prototype;
    prototype.registerDispatcher = function(dispatcher) {
      if (dispatcher._type === 'Root')
        this[kClient] = clients.arriving; // null for the launcher's own connection
      if (dispatcher._type === 'Root' && this[kClient])
        this[kClient].connection = this;
      else if (dispatcher._type === 'Browser' && !clients.browser)
        clients.ownBrowser(dispatcher._object);
      this[kClient]?.made(dispatcher);
      return registerDispatcher.call(this, dispatcher);
    };
    prototype.dispatch = function(message) {
      const client = this[kClient];
      if (!client)
        return dispatch.call(this, message);
      if (client.allows(this, message))
        return clients.running.run(client, () => dispatch.call(this, message));
    };
  }

  // Chromium logs URLs and console texts of all its pages. Playwright would send them to each client that loses the
  // browser, so a shared browser has no log.
  ownBrowser(browser) {
    this.browser = browser;
    browser.on('disconnected', () => this.browserIsGoing(true));
    if (this.options.slots > 1)
      browser.options.browserLogsCollector.recentLogs = () => [];
    const { artifactsDir } = browser.options;
    const directory = () => this.directoryOf(this.running.getStore(), artifactsDir);
    Object.defineProperty(browser.options, 'artifactsDir', { get: directory });
    Object.defineProperty(browser.options, 'tracesDir', { get: directory });
    const { newContextForReuse, contextForReuse } = browser;
    browser.newContextForReuse = (...args) => newContextForReuse.apply(this.reusingNow, args);
    browser.contextForReuse = () => contextForReuse.call(this.reusingNow);
  }

  // Each client has a directory of its own: the files of a trace are named after calls, which all clients number alike.
  directoryOf(client, base) {
    if (!client)
      return base;
    if (!client.directory) {
      client.directory = path.join(base, `session-${++this.lastDirectory}`);
      fs.mkdirSync(client.directory);
    }
    return client.directory;
  }

  // Playwright keeps one context for reuse in each browser. This gives each client one of its own.
  reusing(client, browser, call) {
    client.reused ??= Object.create(browser, {
      _contextForReuse: { value: undefined, writable: true },
      newContext: { value: (...args) => browser.newContext(...args) },
    });
    this.reusingNow = client.reused;
    try {
      return call(); // synchronous until it has asked the browser
    } finally {
      this.reusingNow = null;
    }
  }

  wrapSpawn() {
    const { spawn } = childProcess;
    childProcess.spawn = (...args) => {
      const made = spawn(...args);
      const processes = this.running.getStore()?.processes;
      if (processes) {
        processes.add(made);
        made.once('exit', () => processes.delete(made));
      }
      return made;
    };
  }

  browserIsGoing(isGoing) {
    this.isBrowserGoing = isGoing;
    clearTimeout(this.going);
    if (isGoing)
      this.going = setTimeout(this.onGoing, GOING_GRACE_MS).unref();
  }
}

// `replacement` gets the original method, bound to `object`, and the arguments.
function override(object, name, replacement) {
  const original = object[name];
  object[name] = (...args) => replacement(original.bind(object), ...args);
}

// Most clients leave their directory empty. This is one system call; fs.promises.rm takes three turns through Node's threads.
function removeIfEmpty(directory) {
  try {
    fs.rmdirSync(directory);
    return true;
  } catch {
    return false;
  }
}

// Playwright makes each process the leader of a group, except a few that end soon.
function killGroup(made) {
  try {
    process.kill(-made.pid, 'SIGKILL');
  } catch {
    made.kill('SIGKILL');
  }
}

module.exports = { Clients };
