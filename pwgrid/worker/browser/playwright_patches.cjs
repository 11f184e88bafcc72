// Patches to playwright-core and Node: where the server listens, and a command that a stock Firefox may not know.
'use strict';

const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');

// playwright-core makes its HTTP server with http.createServer() and lets it listen on a TCP port. Here it listens on a Unix
// socket in the worker's private directory. Other servers may not listen, or a client could open a public port of this host
// with browser.bind(). The exception is no HTTP server: a SOCKS proxy on the loopback, which client certificates need.
function wrapListening(socketPath, onServer) {
  let httpServer = null;
  const { createServer } = http;
  const { listen } = net.Server.prototype;
  http.createServer = function(...args) {
    const server = createServer.apply(this, args);
    if (!httpServer) {
      httpServer = server;
      onServer(server);
      server.listen = (...listenArgs) => {
        fs.rmSync(socketPath, { force: true });
        return listen.call(server, { path: socketPath }, listenArgs.find(each => typeof each === 'function'));
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

// Stock Firefox up to 158 does not know a command without which playwright makes no context. Where the browser answers
// `unknown command`, playwright gets an empty success instead.
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

module.exports = { wrapListening, shimBidi };
