// Clients at Playwright's dispatcher, where their messages are parsed already: stops what message_guard.cjs refuses, and removes with
// a client what it made on the host or in the browser (files, processes, contexts, pages over CDP), also what was only being
// made when it went: Playwright ends the calls of a client that goes, and the browser does what they had asked for.
'use strict';

const childProcess = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');
const { AsyncLocalStorage } = require('node:async_hooks');
const { setTimeout: sleep } = require('node:timers/promises');

const { boundBodies } = require('../guard/client_bodies.cjs');
const { judgeCertificates } = require('../guard/client_certificates.cjs');
const { ClientNetwork } = require('./client_network.cjs');
const { boundPatterns } = require('../guard/client_patterns.cjs');
const { boundComparisons } = require('../guard/image_bounds.cjs');
const { MemoryGiver } = require('./give_memory_back.cjs');
const { judgeSize } = require('../guard/message_bounds.cjs');
const { ENDS_THE_SESSION, isWellFormed, judge, judgeNavigation } = require('../guard/message_guard.cjs');
const { override } = require('../override.cjs');
const { browserTypeOf, overrideDownloads, viewForReuse } = require('../playwright/browsers.cjs');
const { hasCallsUnderWay } = require('../playwright/calls.cjs');
const { idOf, sessionIn } = require('../playwright/cdp_sessions.cjs');
const { closeAnyway, closeToTheEnd, withoutVideo } = require('../playwright/contexts.cjs');
const { connectNetworks } = require('../playwright/servers.cjs');
const { streamOf } = require('../playwright/streams.cjs');
const { WaitInfo, waitInfoOf } = require('../playwright/wait_info.cjs');
const { INTERNAL_ERROR } = require('../sessions/session.cjs');
const { SessionDirectories } = require('./session_directories.cjs');

const END_LIMIT_MS = 5_000; // for what a client has under way when it goes; then its contexts are closed all the same
const MALFORMED = 1007; // playwright's own code for a message that is not JSON
const ENDED_BY_CLIENT = 'client closed the browser';
const MESSAGE_FAILED = 'message failed';
const TOO_MUCH_WORK = 'too much work';
const CLOSED_WITH_CLIENT = 'its client has gone';
const kClient = Symbol('client'); // property of a Playwright connection, and of a context
const kUnit = Symbol('unit'); // property of a Playwright connection
// What a command over CDP makes: how its answer names it, and the command that undoes it.
const UNDO = new Map([
  ['Target.createBrowserContext', { named: 'browserContextId', by: 'Target.disposeBrowserContext' }],
  ['Target.createTarget', { named: 'targetId', by: 'Target.closeTarget' }],
]);

class Client {
  // `clients`: those of this browser server
  constructor(session, clients) {
    this.session = session;
    this.unit = session.unit;
    this.clients = clients;
    this.connection = null;
    this.isGone = false;
    this.isOver = false; // gone, and what it had under way is done, or was waited for long enough
    this.underWay = new Set(); // promises of what goes on when its call has ended
    this.limit = null; // kept END_LIMIT_MS after it has gone, if that matters
    this.timer = null;
    this.removed = Promise.resolve(); // what is being removed now
    this.contexts = new Set(); // those that are not closed
    this.madeOverCdp = new Map(); // by id: the CDP command that undoes it
    this.processes = new Set();
    this.streams = new Set(); // of files
    this.language = undefined; // of the Playwright that it speaks for, as that says itself
    this.network = null; // of class ClientNetwork
    this.reused = null; // its view of the browser, with a context for reuse of its own
    this.directory = '';
    this.hasDirectory = false; // made by us, and perhaps removed; else there may be one that Playwright has made
    this.waits = new WaitInfo();
    this.judged = Promise.resolve(); // its last client certificates: one process at a time opens them
    // what the rules in message_guard.cjs read
    this.guard = clients.options.clientGuard;
    this.isShared = this.unit.isShared && clients.options.slots > 1;
    this.blocksFileUrls = clients.options.blockFileUrls;
    this.ownsTracing = false;
    this.isBrowserLevel = false;
  }

  get loopbackPorts() {
    return [...this.clients.loopbackPorts.addresses.keys()];
  }

  // Returns whether Playwright gets the message, in most cases at once. If not, answers it or ends the session.
  allows(connection, message) {
    if (!isWellFormed(message)) {
      this.session.protocolError(MALFORMED);
      return false;
    }
    const info = waitInfoOf(message);
    if (info && !this.waits.takes(info)) {
      connection.onmessage({ id: message.id });
      return false;
    }
    const certificates = message.params?.clientCertificates;
    return this.passes(connection, message) && (!certificates || this.allowsCertificates(connection, message, certificates));
  }

  // The same as a promise, for a message with client certificates.
  allowsCertificates(connection, message, certificates) {
    const judged = this.clients.running.run(this, () => this.judged.then(async () => {
      if (this.isGone)
        return false;
      const verdict = await judgeCertificates(certificates);
      return !this.isGone && this.obeys(verdict, connection, message);
    }));
    this.judged = judged.catch(() => {});
    return judged;
  }

  // Whether the rules let the message pass that need not wait for anything.
  passes(connection, message) {
    const dispatcher = connection._dispatcherByGuid.get(message.guid);
    if (!dispatcher)
      return true;
    if (message.method === 'send')
      this.isBrowserLevel = dispatcher._parent?._type === 'Browser';
    const verdict = judge(dispatcher._type, message.method, message.params, this) ?? judgeSize(message.method, message.params);
    return this.obeys(verdict, connection, message);
  }

  // Whether this verdict lets the message pass. If not, does what it says.
  obeys(verdict, connection, message) {
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

  // Playwright sends in the background what a client gets: an error there would reach nobody.
  ownMessages(connection) {
    this.connection = connection;
    const send = connection.onmessage;
    connection.onmessage = async message => {
      this.clients.hooks.onAnswer(this, message);
      try {
        await send(message);
      } catch (error) {
        this.cannotSend(message, error, send);
      }
    };
  }

  // An answer becomes an error. Without one of its events a client would wait for ever.
  cannotSend({ id, error: isError }, error, send) {
    if (id === undefined || isError)
      return this.fail(error);
    const text = `the answer cannot be sent: ${error.message}`;
    send({ id, error: { error: { name: 'Error', message: text, stack: '' } } })?.catch?.(again => this.fail(again));
  }

  // Its connection is not to be trusted any more.
  fail(error) {
    this.clients.hooks.onConnectionError(this, error);
    this.session.end('grid', MESSAGE_FAILED, INTERNAL_ERROR);
  }

  // Called for each new object of this client, before Playwright uses it.
  made(dispatcher) {
    if (dispatcher._type === 'Browser')
      this.ownBrowser(dispatcher);
    else if (dispatcher._type === 'APIRequestContext')
      this.clients.ownBodies(dispatcher._object, this);
    else if (dispatcher._type === 'CDPSession')
      this.ownCdpSession(dispatcher);
    else if (dispatcher._type === 'Page')
      boundComparisons(dispatcher);
    else if (dispatcher._type === 'Playwright')
      override(dispatcher, 'cleanup', cleanup => this.cleanup(cleanup));
    const stream = streamOf(dispatcher);
    if (stream)
      this.ownStream(stream);
  }

  // Returns its pages by id, the newest last.
  pages() {
    const dispatchers = [...this.connection?._dispatcherByGuid.values() ?? []];
    return new Map(dispatchers.filter(each => each._type === 'Page').map(each => [each._guid, each._object]));
  }

  ownBrowser(dispatcher) {
    override(dispatcher, 'newContextForReuse', async (newContextForReuse, params, progress) => {
      if (params.recordVideo)
        params.recordVideo.dir = undefined; // as Playwright does for newContext
      const made = await newContextForReuse(params, progress);
      dispatcher._isolatedContexts.add(made.context._object);
      return made;
    });
  }

  ownCdpSession(dispatcher) {
    override(dispatcher, 'send', async (send, params, progress) => {
      const { method } = params;
      const ends = method === 'Browser.close' || method === 'Browser.crash';
      if (ends)
        this.unit.browserIsGoing(true);
      try {
        return await send(params, progress);
      } catch (error) {
        if (ends && this.unit.browser.isConnected()) // the browser has refused it on this CDP session
          this.unit.browserIsGoing(false);
        throw error;
      }
    });
    const session = sessionIn(dispatcher._object);
    override(session, 'send', (send, method, params) => this.recordMade(method, send(method, params)));
  }

  // Returns `answer`, which makes what the CDP command has made a thing of this client.
  recordMade(method, answer) {
    const undo = UNDO.get(method);
    if (undo) {
      const { named, by } = undo;
      this.track(answer.then(({ [named]: id }) => this.madeOverCdp.set(id, [by, { [named]: id }])));
    }
    return answer;
  }

  // A stream that nobody reads keeps its file open, and the end of a video waits for it.
  ownStream(stream) {
    if (this.isGone)
      return void stream.destroy();
    this.streams.add(stream);
    stream.once('close', () => this.streams.delete(stream));
  }

  ownProcess(made) {
    this.processes.add(made);
    made.once('exit', () => this.processes.delete(made));
    if (this.isGone)
      killGroup(made);
  }

  // `making` is the promise of a context; so is what this returns.
  ownContext(making) {
    return this.track(making.then(context => {
      this.contexts.add(context);
      context[kClient] = this;
      if (this.isGone)
        withoutVideo(context);
      context.once('close', () => {
        this.contexts.delete(context);
        this.madeOverCdp.delete(context._browserContextId);
        withoutVideo(context);
      });
      closeToTheEnd(context, closed => this.track(closed));
      return context;
    }));
  }

  // Returns `promise`, for which the end of this client waits. What it has made when that wait is over is removed then.
  track(promise) {
    this.underWay.add(promise);
    const done = () => {
      this.underWay.delete(promise);
      if (this.isOver)
        this.remove();
    };
    promise.then(done, done);
    return promise;
  }

  // Called when its connection is over; what Playwright does then may have begun.
  gone() {
    if (this.isGone)
      return;
    this.isGone = true;
    this.clients.hooks.onGone(this);
    this.network?.close();
    this.processes.forEach(killGroup); // a video that nobody will see; ffmpeg may also be stuck
    this.streams.forEach(each => each.destroy());
    this.contexts.forEach(withoutVideo);
    if (this.connection && hasCallsUnderWay(this.connection)) // Playwright waits for all of them before it calls `cleanup`
      this.untilLimit();
  }

  // In place of Playwright's own, which closes the contexts that were given to this client.
  async cleanup(cleanup) {
    this.gone();
    await this.settled();
    const closed = cleanup().catch(() => {}); // a full disk, say
    await (this.contexts.size ? Promise.race([closed, this.untilLimit()]) : closed);
    await this.settled();
    clearTimeout(this.timer);
    await this.end();
  }

  async settled() {
    if (this.underWay.size)
      await Promise.race([Promise.allSettled([...this.underWay]), this.untilLimit()]);
  }

  untilLimit() {
    this.limit ??= new Promise(resolve => {
      this.timer = setTimeout(() => resolve(this.end()), END_LIMIT_MS).unref();
    });
    return this.limit;
  }

  end() {
    this.isOver = true;
    return this.remove();
  }

  // Removes what there is of it by now, again for each thing that comes later.
  remove() {
    this.removed = this.removed.then(() => this.removeAll()).catch(console.error);
    return this.removed;
  }

  async removeAll() {
    const { byDirectory, running } = this.clients;
    const { browser, stopTracing } = this.unit;
    this.processes.forEach(killGroup);
    const undone = [...this.contexts].map(context => closeAnyway(context, CLOSED_WITH_CLIENT));
    if (this.ownsTracing) { // its stop fails where a page was recorded, which is gone by now and its record with it
      this.ownsTracing = false;
      undone.push(this.track(running.run(this, stopTracing).catch(() => { browser._tracingRecording = false; })));
    }
    for (const [method, params] of this.madeOverCdp.values())
      undone.push(browser._session.send(method, params));
    this.madeOverCdp.clear();
    if (undone.length)
      await Promise.race([Promise.allSettled(undone), sleep(END_LIMIT_MS, null, { ref: false })]);
    if (this.directory)
      await this.clients.directories.giveBack(this.directory).catch(console.error);
    byDirectory.delete(this.directory);
    this.clients.memory.clientLeft();
  }
}

class Clients {
  // `unitOf(browser)` returns the unit of Playwright's browser. `hooks`: onCall(client, message) and onAnswer(client, message) for what
  // a client asks and gets, onGone(client), and onConnectionError(client, error)
  constructor(driver, options, loopbackPorts, unitOf, hooks) {
    this.options = options;
    this.loopbackPorts = loopbackPorts;
    this.unitOf = unitOf;
    this.hooks = hooks;
    this.running = new AsyncLocalStorage(); // the client that is being admitted, or whose message is being dispatched
    this.eventOf = new AsyncLocalStorage(); // the client about whose page an event of the browser is
    this.navigates = false; // navigations are judged
    this.directories = new SessionDirectories(options.sessionsDirectory);
    this.byDirectory = new Map(); // clients that have one
    this.wrapDispatcher(driver.connection);
    this.wrapSpawn();
    this.SocksProxy = driver.SocksProxy;
    connectNetworks(driver, () => this.running.getStore()?.network?.socksProxy);
    this.memory = new MemoryGiver();
    this.ownBodies = boundBodies(() => this.running.getStore());
    boundPatterns(() => this.inWork(), client => client.session.end('grid', TOO_MUCH_WORK));
  }

  // The client for which this process works now, if it is known.
  inWork() {
    return this.running.getStore() ?? this.eventOf.getStore();
  }

  // Runs `handle`, in which Playwright handles this message of a unit's browser.
  workOn(unit, message, handle) {
    const client = unit.owners.of(message);
    client?.session.server.workMark.begins(client.session.id);
    return this.eventOf.run(client, handle);
  }

  // Runs `upgrade`, in which Playwright makes this session's connection. `network`: the pattern of what its browser gets through its
  // client; '' for nothing.
  admit(session, network, upgrade) {
    const client = session.client = new Client(session, this);
    this.running.run(client, () => {
      if (network)
        client.network = new ClientNetwork(this.SocksProxy, network, client.unit, this.loopbackPorts);
      upgrade();
    });
  }

  // Runs `work`, which is done for nobody.
  forNobody(work) {
    return this.running.exit(() => this.eventOf.exit(work));
  }

  wrapDispatcher(connection) {
    const clients = this;
    const prototype = Object.getPrototypeOf(connection);
    const { dispatch, registerDispatcher } = prototype;
    prototype.registerDispatcher = function(dispatcher) {
      if (dispatcher._type === 'Root')
        this[kClient] = clients.running.getStore(); // undefined for the launcher's own connection
      if (dispatcher._type === 'Root' && this[kClient])
        this[kClient].ownMessages(this);
      else if (dispatcher._type === 'Browser')
        this[kUnit] = clients.connected(dispatcher._object, this[kClient]);
      else if (dispatcher._type === 'Playwright')
        clients.ownListeners(dispatcher, this[kUnit]);
      else if (dispatcher._type === 'Page')
        clients.ownNavigations(dispatcher._object.delegate);
      this[kClient]?.made(dispatcher);
      return registerDispatcher.call(this, dispatcher);
    };
    prototype.dispatch = async function(message) {
      const client = this[kClient];
      if (!client)
        return dispatch.call(this, message);
      try {
        if (client.network && !client.network.settings)
          await client.network.listening;
        const allows = client.allows(this, message);
        if (allows !== true && !await allows)
          return;
        clients.hooks.onCall(client, message);
        await clients.running.run(client, () => dispatch.call(this, message));
      } catch (error) { // Playwright itself answers what its calls throw
        client.fail(error);
      }
    };
  }

  // Called when a unit is launched.
  knows(unit) {
    unit.isKnown(context => context[kClient], (...work) => this.workOn(unit, ...work));
    this.ownBrowser(unit, unit.browser);
  }

  // Called for each connection to a browser; without a client for the launcher's own. Returns the unit.
  connected(browser, client) {
    const unit = this.unitOf(browser);
    if (client?.network) // for requests that Playwright sends itself
      browser.options.proxy = client.network.settings;
    return unit;
  }

  // Chromium logs URLs and console texts of all its pages. Playwright would send them to each client that loses the
  // browser, so a shared browser has no log.
  ownBrowser(unit, browser) {
    if (unit.isShared && this.options.slots > 1)
      browser.options.browserLogsCollector.recentLogs = () => [];
    const { artifactsDir } = browser.options;
    const client = () => this.running.getStore();
    this.ownLanguage(browser.options, client);
    Object.defineProperty(browser.options, 'artifactsDir', { get: () => this.directoryOf(client(), artifactsDir) });
    // Each context reads it; Playwright itself makes it when a trace begins.
    Object.defineProperty(browser.options, 'tracesDir', { get: () => this.nameDirectoryOf(client(), artifactsDir) });
    // Each context reads it, too. Chromium makes it for the first download; and where stock Firefox gives a file the name that its
    // page wants, it shall meet no file of another client.
    const downloads = browserTypeOf(browser) === 'chromium' ? 'nameDirectoryOf' : 'directoryOf';
    Object.defineProperty(browser.options, 'downloadsPath', { get: () => this[downloads](client(), artifactsDir) });
    overrideDownloads(browser, (made, page, ...rest) => // by an event of the browser
      this.running.run(page.browserContext[kClient], () => made(page, ...rest)));
    this.ownMakers(unit, browser, artifactsDir);
    const { newContextForReuse, contextForReuse } = browser;
    browser.newContextForReuse = (...args) => newContextForReuse.apply(reusedBy(client()), args);
    browser.contextForReuse = () => contextForReuse.call(reusedBy(client()));
  }

  // Playwright words errors in the language of the client that connected last, which is the canary's every now and then.
  ownLanguage(options, client) {
    let language = options.sdkLanguage;
    Object.defineProperty(options, 'sdkLanguage', {
      get: () => client()?.language ?? language,
      set: value => {
        if (client())
          client().language = language = value;
      },
    });
  }

  // Playwright listens for the browser's end on behalf of each connection, a canary's too, and goes on when the connection is
  // over: the browser would keep each of them. Called as soon as a connection listens, so that what is new is its own.
  ownListeners(dispatcher, { browser, listeners }) {
    const own = browser.listeners('disconnected').filter(each => !listeners.has(each));
    own.forEach(each => listeners.add(each));
    override(dispatcher, 'cleanup', cleanup => {
      for (const each of own) {
        browser.off('disconnected', each);
        listeners.delete(each);
      }
      return cleanup();
    });
  }

  // Where Playwright asks the browser to navigate: for `goto`, and for others, such as the origins of a storage state. `delegate` is
  // that of any page.
  ownNavigations(delegate) {
    if (this.navigates)
      return;
    this.navigates = true;
    const prototype = Object.getPrototypeOf(delegate);
    const { navigateFrame } = prototype;
    prototype.navigateFrame = async function(frame, url, ...rest) {
      const client = frame._page.browserContext[kClient];
      const refusal = client && judgeNavigation(url, client);
      if (refusal)
        throw new Error(refusal);
      return navigateFrame.call(this, frame, url, ...rest);
    };
  }

  // What these make is known as the client's from the first moment, also where its call ends before it is made.
  ownMakers(unit, browser, artifactsDir) {
    const wrap = (object, name, replacement) => object?.[name] && override(object, name, (make, ...args) => {
      const client = this.running.getStore();
      return client ? replacement(client, make, ...args) : make(...args);
    });
    wrap(browser, 'doCreateNewContext', (client, make, options) => {
      if (options.recordVideo) // each page of the context has one, also a page that no call has asked for
        options.recordVideo.dir = this.directoryOf(client, artifactsDir);
      return client.ownContext(this.loopbackPorts.settle(options, client.isShared).then(() => {
        options.proxy ??= client.network?.settings;
        return make(options);
      }));
    });
    wrap(browser, 'newBrowserCDPSession', (client, make) => client.track(make().then(session => { // it ends with no context
      const sessionId = idOf(sessionIn(session));
      client.madeOverCdp.set(sessionId, ['Target.detachFromTarget', { sessionId }]);
      return session;
    })));
    // A context that Playwright cannot set up, for a wrong permission, say, is known by this alone.
    wrap(browser._session, 'send', (client, send, method, params) => {
      const answer = send(method, params);
      return method === 'Target.createBrowserContext' ? client.recordMade(method, answer) : answer;
    });
    unit.stopTracing = browser.stopTracing?.bind(browser);
    wrap(browser, 'startTracing', (client, start, ...args) => {
      const others = browser._tracingRecording;
      const started = start(...args);
      if (others)
        return started;
      client.ownsTracing = true;
      return client.track(started.catch(error => {
        client.ownsTracing = browser._tracingRecording = false;
        throw error;
      }));
    });
    wrap(browser, 'stopTracing', (client, stop) => {
      client.ownsTracing = false;
      return client.track(stop().catch(error => {
        client.ownsTracing = true;
        throw error;
      }));
    });
  }

  // Each client has a directory of its own: the files of a trace are named after calls, which all clients number alike.
  nameDirectoryOf(client, base) {
    if (!client)
      return base;
    if (!client.directory) {
      client.directory = this.directories.take();
      this.byDirectory.set(client.directory, client);
    }
    return client.directory;
  }

  directoryOf(client, base) {
    const directory = this.nameDirectoryOf(client, base);
    if (client && !client.hasDirectory) { // not again when it has been removed
      client.hasDirectory = true;
      fs.mkdirSync(directory, { recursive: true }); // a trace may have made it
    }
    return directory;
  }

  wrapSpawn() {
    const { spawn } = childProcess;
    childProcess.spawn = (command, args, ...rest) => {
      const made = spawn(command, args, ...rest);
      // A video that starts with its page is started by an event of the browser, and known by where it goes.
      const client = this.running.getStore() ?? this.byDirectory.get(path.dirname(String(args?.at?.(-1))));
      client?.ownProcess(made);
      return made;
    };
  }
}

// Playwright keeps one context for reuse in each browser. Returns this client's view of it, which has one of its own.
function reusedBy(client) {
  const { browser } = client.unit;
  return client.reused ??= viewForReuse(browser);
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
