// Finds the private objects of a driver that needs.cjs names: launches a stand-in for each kind of browser with it, and does with the driver's
// own client what brings those objects about.
'use strict';

const childProcess = require('node:child_process');
const http = require('node:http');
const os = require('node:os');
const path = require('node:path');

const { override } = require('../override.cjs');
const { questionFor } = require('./browsers.cjs');
const { attach } = require('./cdp_sessions.cjs');
const { loadDriver } = require('./driver.cjs');
const { connectNetworks, watchServers } = require('./servers.cjs');
const { webSocketOf } = require('./web_sockets.cjs');

const STAND_IN = path.join(__dirname, 'stand_in_browser.cjs');
const CERTIFICATE = { origin: 'https://a.test', passphrase: 'of none' };
const OTHERS = [ // beside Chromium, with what each is launched with
  ['stockFirefox', 'firefox', { channel: 'moz-firefox' }],
  ['firefox', 'firefox', {}],
  ['webkit', 'webkit', {}],
];

// Puts each object into `found` as soon as it is there, by the names of needs.cjs. Fails where the driver lacks what the way to the next one
// leads over. Returns the browsers that are to be killed, Playwright's BrowserServers.
async function lookAt(core, found) {
  standIn(core);
  watchHttpServer(found);
  const driver = found.driver = loadDriver(core);
  const { playwright, PlaywrightServer, SocksProxy } = driver;
  Object.assign(found, { PlaywrightServer: { prototype: copyOf(PlaywrightServer?.prototype) }, SocksProxy });
  found.socksProxy = new SocksProxy();
  connectNetworks(driver, () => found.socksProxy);
  watchServer(PlaywrightServer, found);
  watchDispatchers(driver, found);
  let served = null;
  watchServers(driver, browser => { served = browser; });
  const launched = [];
  const launch = async (name, type, options) => {
    launched.push(await playwright[type].launchServer({ ...options, executablePath: process.execPath }));
    found[name] = served;
    return launched.at(-1).wsEndpoint();
  };

  const endpoint = await launch('browser', 'chromium', { chromiumSandbox: false });
  watchUpgrades(found);
  await lookAtChromium(await playwright.chromium.connect(endpoint), found);
  for (const [name, type, options] of OTHERS) {
    const endpointOfOther = await launch(name, type, options);
    found[`${name}Transport`] = found[name]._connection?._transport;
    found[`${name}Command`] = unanswered(found[name]);
    if (name === 'stockFirefox') {
      await (await (await playwright.firefox.connect(endpointOfOther)).newContext()).newPage();
      [found.stockFirefoxPage] = found.stockFirefox._bidiPages.values();
    }
  }
  return launched;
}

async function lookAtChromium(client, found) {
  const { browser } = found;
  const context = await client.newContext();
  found.context = found.BrowserContext?._object;
  const page = await context.newPage();
  found.page = found.Page?._object;
  found.frame = found.page?.mainFrame();
  found.transport = browser._connection?._transport;
  found.session = browser._session;
  found.command = unanswered(browser);
  found.rootSession = await browser._clientRootSession();
  found.attached = await attach(browser, 'T1');
  found.viewed = await found.context.newCDPSession(found.page);
  found.ofBrowser = await browser.newBrowserCDPSession();
  await context.newCDPSession(page);
  // What these make is looked at, and not what becomes of them.
  await settled(record(client));
  await settled(page.setInputFiles('input', __filename, { timeout: 1 }));
  await settled(reuse(client, found));
  await settled(withOptions(client, found));
}

// A record of the browser, which is read as a stream.
async function record(client) {
  await client.startTracing();
  await client.stopTracing();
}

async function reuse(client, found) {
  override(found.Browser, 'newContextForReuse', async (make, ...args) => found.reused = await make(...args));
  await client._newContextForReuse({});
  found.browserOfReused = found.browser;
}

async function withOptions(client, found) {
  override(found.browser, 'doCreateNewContext', async (make, options) => {
    found.contextOptions = options;
    return found.contextOfOptions = await make(options);
  });
  await client.newContext({ clientCertificates: [CERTIFICATE], recordVideo: { dir: os.tmpdir() } });
}

function settled(promise) {
  return promise.catch(() => {});
}

// What Playwright keeps of a command that its browser has not answered.
function unanswered(browser) {
  const [session, ...question] = questionFor(browser);
  settled(session.send(...question));
  return [...session._callbacks.values()].at(-1);
}

// As it is before its methods are replaced here.
function copyOf(prototype) {
  return Object.create(null, Object.getOwnPropertyDescriptors(prototype ?? {}));
}

function standIn(core) {
  const { spawn } = childProcess;
  childProcess.spawn = (command, args, options) =>
    command === process.execPath ? spawn(command, [STAND_IN, core, ...args], options) : spawn(command, args, options);
}

function watchServer({ prototype }, found) {
  const { listen } = prototype;
  prototype.listen = function(...args) {
    found.server ??= this;
    return listen.apply(this, args);
  };
}

// The one that Playwright's first server listens with.
function watchHttpServer(found) {
  const { createServer } = http;
  http.createServer = (...args) => {
    const server = createServer(...args);
    found.httpServer ??= server;
    return server;
  };
}

// Runs after Playwright's own listener, which upgrades synchronously.
function watchUpgrades(found) {
  found.httpServer?.on('upgrade', (request, socket) => { found.webSocket = webSocketOf(socket); });
}

// The first dispatcher of each type, and the connection of its client.
function watchDispatchers({ connection }, found) {
  const prototype = Object.getPrototypeOf(connection);
  const { registerDispatcher } = prototype;
  prototype.registerDispatcher = function(dispatcher) {
    if (this !== connection) {
      found.connection ??= this;
      found[dispatcher._type] ??= dispatcher;
    }
    return registerDispatcher.call(this, dispatcher);
  };
}

module.exports = { lookAt };
