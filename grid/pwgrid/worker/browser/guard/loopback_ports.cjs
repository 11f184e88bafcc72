// The ports of Playwright's SOCKS proxies, which have no password: one shows the client certificates of a context to the servers that they
// are for, another one leads to the network of a client. So here the kernel proves of each connection that it comes from the browser
// of that session; and since a browser may have contexts of several sessions, and this process requests of all, no client may name such
// a port as its proxy.
'use strict';

const dns = require('node:dns/promises');
const net = require('node:net');
const { randomInt } = require('node:crypto');

const { ownerOf } = require('./socket_owner.cjs');

const PROOF_LIMIT_MS = 10_000; // Node's threads may be busy with files
const MOST_UNPROVED = 64; // connections to one port of which it is not known yet whose they are
const QUIET_MS = 10_000; // between two reports of refused connections
const SOCKS_PORT = 1080; // where a proxy's URL names none
const { listen } = net.Server.prototype; // as it is before launcher.cjs keeps clients from listening

class LoopbackPorts {
  // `onRefused` is called with the number of connections that were refused since it was called before, and the last one's uid.
  constructor(onRefused) {
    this.onRefused = onRefused;
    this.addresses = new Map(); // of those that are open, by port
    this.untold = 0; // of those that were refused
    this.lastUid = 0;
    this.quiet = null;
  }

  // Lets Playwright's proxy listen for the browser of this unit, with `isForNode` also for this process, and calls `done`. It gets an address that nobody can guess before it
  // is there. Playwright knows it by its port alone, so that no two may have the same.
  listen(server, unit, done, { isForNode = false } = {}) {
    const address = loopbackAddress();
    const { emit } = server;
    server.pauseOnConnect = true; // no byte is read of a connection that is not proved
    server.unproved = 0;
    server.emit = (event, ...args) => event === 'connection' ? this.prove(server, unit, isForNode, emit, args[0]) : emit.call(server, event, ...args);
    const attempt = () => listen.call(server, 0, address, () => {
      const { port } = server.address();
      if (this.addresses.has(port))
        return void server.close(attempt);
      this.addresses.set(port, address);
      server.once('close', () => this.addresses.delete(port));
      done();
    });
    return attempt();
  }

  async prove(server, unit, isForNode, emit, socket) {
    socket.on('error', () => {});
    if (server.unproved >= MOST_UNPROVED)
      return void socket.destroy();
    server.unproved++;
    const timer = setTimeout(() => socket.destroy(), PROOF_LIMIT_MS);
    const owner = await ownerOf(socket, unit.process.pid, isForNode).catch(console.error);
    clearTimeout(timer);
    server.unproved--;
    if (owner?.isInTree && server.listening && !socket.destroyed) {
      emit.call(server, 'connection', socket);
      return void socket.resume();
    }
    socket.destroy();
    if (owner && !owner.isInTree)
      this.refused(owner.uid);
  }

  refused(uid) {
    this.untold++;
    this.lastUid = uid;
    if (!this.quiet)
      this.tell();
  }

  tell() {
    this.onRefused(this.untold, this.lastUid);
    this.untold = 0;
    this.quiet = setTimeout(() => {
      this.quiet = null;
      if (this.untold)
        this.tell();
    }, QUIET_MS).unref();
  }

  // Called with the options of a new context before its browser gets them: tells it the true address of its own port, and
  // refuses a proxy that is one of these ports.
  async settle(options, isShared) {
    const { proxyOverride: own, proxy } = options;
    if (own) {
      const { protocol, port } = new URL(own.server);
      own.server = `${protocol}//${this.addresses.get(Number(port))}:${port}`;
    }
    if (proxy)
      options.proxy = await this.settledProxy(proxy, isShared);
  }

  // The proxy that a client names, as its browser and Playwright's own requests get it: these come from this process, which may use the
  // ports of all clients' networks. Fails if it is one of these ports.
  async settledProxy(proxy, isShared) {
    if (!isShared && !isOfSocks(proxy.server)) // a list, perhaps, which only the client's own browser takes
      return proxy;
    return { ...proxy, server: await this.pinned(proxy.server) };
  }

  // Only a proxy that is spoken to in SOCKS matters: one of HTTP would be sent what is no SOCKS. What its name means is found out
  // here, once, since it may mean something else when the browser asks.
  async pinned(server) {
    const { protocol, hostname, port } = new URL(server);
    if (isList({ hostname }))
      throw new Error(`this grid takes a proxy of one address, not ${server}`);
    if (protocol === 'http:' || protocol === 'https:')
      return server;
    const name = new URL(`http://${hostname}`).hostname.replace(/^\[|\]$/g, ''); // an IPv4 address has many forms, and here one
    const address = net.isIP(name) ? name : (await dns.lookup(name)).address;
    if (this.isOpen(address, Number(port || SOCKS_PORT)))
      throw new Error(`the proxy ${server} is refused by the grid: it serves one session alone`);
    return `${protocol}//${net.isIPv6(address) ? `[${address}]` : address}${port && `:${port}`}`;
  }

  isOpen(address, port) {
    const open = new net.BlockList(); // knows that ::ffff:127.0.0.1 is 127.0.0.1
    if (this.addresses.has(port))
      open.addAddress(this.addresses.get(port));
    return open.check(address, net.isIPv6(address) ? 'ipv6' : 'ipv4');
  }
}

// Browsers take a list of proxies, or one for each scheme.
function isList({ hostname }) {
  return /[,;=]/.test(hostname);
}

function isOfSocks(server) {
  try {
    const url = new URL(server);
    return url.protocol.startsWith('socks') && !isList(url);
  } catch { // Playwright takes `proxy:3128` for HTTP
    return false;
  }
}

// One of 127.0.0.0/8, but none that is in use for something else.
function loopbackAddress() {
  const number = randomInt(1 << 8, (1 << 24) - (1 << 8));
  return `127.${number >> 16}.${number >> 8 & 255}.${number & 255}`;
}

module.exports = { LoopbackPorts };
