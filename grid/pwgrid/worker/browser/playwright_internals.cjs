// What is used of Playwright's driver that it does not export. Until some version these were in files of their own.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

function internalsOf(playwrightCore) {
  const lib = path.join(playwrightCore, 'lib');
  const { wsServer: WebSocketServer } = require(path.join(lib, 'utilsBundle'));
  if (fs.existsSync(path.join(lib, 'coreBundle.js'))) {
    const { remote: { PlaywrightServer }, utils: { SocksProxy } } = require(path.join(lib, 'coreBundle'));
    return { PlaywrightServer, SocksProxy, WebSocketServer };
  }
  const { PlaywrightServer } = require(path.join(lib, 'remote', 'playwrightServer'));
  const { SocksProxy } = require(path.join(lib, 'server', 'utils', 'socksProxy'));
  return { PlaywrightServer, SocksProxy, WebSocketServer };
}

// Calls `onServer(browser)` when Playwright's server of a launched browser begins to listen: nobody else is shown that browser itself.
function watchServers({ PlaywrightServer: { prototype } }, onServer) {
  const { listen } = prototype;
  prototype.listen = function(...args) {
    onServer(this._options.preLaunchedBrowser);
    return listen.apply(this, args);
  };
}

module.exports = { internalsOf, watchServers };
