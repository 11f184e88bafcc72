// The network of a client (its option `exposeNetwork`) in its own browser: a SOCKS proxy for that browser's contexts. What fits the
// client's pattern goes through its connection and comes out at its end, all else goes on from here.
'use strict';

class ClientNetwork {
  // `pattern`: which hosts, as Playwright's clients say it. `ports`: of class LoopbackPorts.
  constructor(SocksProxy, pattern, unit, ports) {
    this.socksProxy = new SocksProxy();
    this.socksProxy.setPattern(pattern);
    this.settings = null; // the proxy as Playwright has it, once it listens
    const { _server: server } = this.socksProxy;
    server.listen = (_port, _host, done) => ports.listen(server, unit, done, { isForNode: true }); // for requests of Playwright's own
    this.listening = this.socksProxy.listen(0).then(port => {
      this.settings = { server: `socks5://${ports.addresses.get(port)}:${port}` };
    });
  }

  close() {
    this.listening.then(() => this.socksProxy.close()).catch(console.error);
  }
}

module.exports = { ClientNetwork };
