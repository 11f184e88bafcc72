// A program: loads the driver whose directory it is given, opens a page with it in a stand-in for a browser, and writes what the browser
// server needs of its private objects and does not find: a JSON list, empty for a driver that is known (pwgrid/setup/drivers.py).
'use strict';

const childProcess = require('node:child_process');
const path = require('node:path');

const { loadDriver } = require('./driver.cjs');
const { missingIn } = require('./needs.cjs');
const { watchServers } = require('./servers.cjs');

const LIMIT_MS = 60_000;
const STAND_IN = path.join(__dirname, 'stand_in_browser.cjs');

async function objectsOf(core) {
  const { spawn } = childProcess;
  childProcess.spawn = (command, args, options) =>
    command === process.execPath ? spawn(command, [STAND_IN], options) : spawn(command, args, options);
  const driver = loadDriver(core);
  const { playwright: { chromium }, PlaywrightServer, SocksProxy } = driver;
  const found = { driver, PlaywrightServer, SocksProxy, socksProxy: new SocksProxy() };
  watchServers(driver, browser => { found.browser = browser; });
  const { listen } = PlaywrightServer.prototype;
  PlaywrightServer.prototype.listen = function(...args) {
    found.server = this;
    return listen.apply(this, args);
  };
  const prototype = Object.getPrototypeOf(driver.connection);
  const { registerDispatcher } = prototype;
  prototype.registerDispatcher = function(dispatcher) {
    if (this !== driver.connection) {
      found.connection = this;
      found[dispatcher._type] = dispatcher;
    }
    return registerDispatcher.call(this, dispatcher);
  };
  found.launched = await chromium.launchServer({ executablePath: process.execPath, chromiumSandbox: false });
  const client = await chromium.connect(found.launched.wsEndpoint());
  const context = await client.newContext();
  const page = await context.newPage();
  await context.newCDPSession(page);
  found.context = found.BrowserContext?._object;
  found.page = found.Page?._object;
  found.transport = found.browser?._connection?._transport;
  found.session = found.browser?._session;
  found.rootSession = await found.browser?._clientRootSession();
  return found;
}

async function main() {
  setTimeout(() => {
    process.stderr.write(`it opens no page within ${LIMIT_MS / 1000} s\n`);
    process.exit(1);
  }, LIMIT_MS).unref();
  const found = await objectsOf(process.argv[2]);
  const missing = missingIn(found);
  await found.launched.kill();
  process.stdout.write(JSON.stringify(missing), () => process.exit(0));
}

main().catch(error => {
  process.stderr.write(`${String(error?.message ?? error).split('\n', 1)[0]}\n`);
  process.exit(1);
});
