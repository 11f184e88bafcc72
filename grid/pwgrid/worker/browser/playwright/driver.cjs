// What is used of Playwright's driver that it does not export. Until 1.59 its parts were in files of their own, since then they are in one
// bundle.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

// Returns what is in the driver at this directory: { version, playwright, PlaywrightServer, SocksProxy, WebSocketServer, WebSocket,
// connection }, undefined for what it lacks. `connection` is the driver's own, of its dispatchers, which is of the class that each client's
// has.
function loadDriver(core) {
  const lib = path.join(core, 'lib');
  const { wsServer: WebSocketServer, ws: WebSocket } = require(path.join(lib, 'utilsBundle'));
  const playwright = require(core);
  const { version } = require(path.join(core, 'package.json'));
  const connection = playwright._connection?.toImpl?.(playwright._connection);
  return { version, playwright, ...partsIn(lib), WebSocketServer, WebSocket, connection };
}

function partsIn(lib) {
  if (fs.existsSync(path.join(lib, 'coreBundle.js'))) {
    const { remote, utils } = require(path.join(lib, 'coreBundle'));
    return { PlaywrightServer: remote?.PlaywrightServer, SocksProxy: utils?.SocksProxy };
  }
  const { PlaywrightServer } = require(path.join(lib, 'remote', 'playwrightServer'));
  const { SocksProxy } = require(path.join(lib, 'server', 'utils', 'socksProxy'));
  return { PlaywrightServer, SocksProxy };
}

module.exports = { loadDriver };
