// Playwright's server of a launched browser: which browser it serves, and by whose network a client's own browser reaches what it asks for.
'use strict';

// Calls `onServer(browser)` when Playwright's server of a launched browser begins to listen: nobody else is shown that browser itself.
function watchServers({ PlaywrightServer: { prototype } }, onServer) {
  const { listen } = prototype;
  prototype.listen = function(...args) {
    onServer(this._options.preLaunchedBrowser);
    return listen.apply(this, args);
  };
}

// Lets Playwright's server find the network of the client whose connection it makes: `proxyOf()` returns its SOCKS proxy, if it has one.
function connectNetworks({ PlaywrightServer: { prototype } }, proxyOf) {
  const { _initPreLaunchedBrowserMode: init } = prototype;
  prototype._initPreLaunchedBrowserMode = async function(...args) {
    return { ...await init.apply(this, args), socksProxy: proxyOf() };
  };
}

module.exports = { connectNetworks, watchServers };
