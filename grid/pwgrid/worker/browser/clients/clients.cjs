// All clients of this browser server: knows for which one Playwright works now, and has it keep apart what they make in a browser that
// they share.
'use strict';

const childProcess = require('node:child_process');
const { AsyncLocalStorage } = require('node:async_hooks');

const { boundBodies } = require('../guard/client_bodies.cjs');
const { boundPatterns } = require('../guard/client_patterns.cjs');
const { judgeNavigation } = require('../guard/playwright_messages.cjs');
const { override } = require('../override.cjs');
const { overrideDownloads, viewForReuse } = require('../playwright/browsers.cjs');
const { idOf, sessionIn } = require('../playwright/cdp_sessions.cjs');
const { connectNetworks } = require('../playwright/servers.cjs');
const { Client, kClient } = require('./client.cjs');
const { ClientFiles } = require('./client_files.cjs');
const { ClientNetwork } = require('./client_network.cjs');
const { MemoryGiver } = require('./give_memory_back.cjs');
const { SessionDirectories } = require('./session_directories.cjs');

const TOO_MUCH_WORK = 'too much work';
const kUnit = Symbol('unit'); // property of a Playwright connection

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
    this.files = new ClientFiles(this.directories, () => this.running.getStore());
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
    client?.session.server.sessionInWork.begins(client.session.id);
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
    const client = () => this.running.getStore();
    this.ownLanguage(browser.options, client);
    this.files.own(browser);
    overrideDownloads(browser, (made, page, ...rest) => // by an event of the browser
      this.running.run(page.browserContext[kClient], () => made(page, ...rest)));
    this.ownMakers(unit, browser);
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
  ownMakers(unit, browser) {
    const wrap = (object, name, replacement) => object?.[name] && override(object, name, (make, ...args) => {
      const client = this.running.getStore();
      return client ? replacement(client, make, ...args) : make(...args);
    });
    wrap(browser, 'doCreateNewContext', (client, make, options) => {
      if (options.recordVideo) // each page of the context has one, also a page that no call has asked for
        options.recordVideo.dir = this.files.make(client);
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

  wrapSpawn() {
    const { spawn } = childProcess;
    childProcess.spawn = (command, args, ...rest) => {
      const made = spawn(command, args, ...rest);
      // A video that starts with its page is started by an event of the browser, and known by where it goes.
      const client = this.running.getStore() ?? this.files.ownerOf(String(args?.at?.(-1)));
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

module.exports = { Clients };
