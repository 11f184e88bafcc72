// Where Playwright puts the files of a client: videos, traces, downloads. Each client has a directory of its own, since the files of a
// trace are named after calls, which all clients number alike.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const { browserTypeOf } = require('../playwright/browsers.cjs');

class ClientFiles {
  // `directories`: of class SessionDirectories. `inCall()` returns the client whose call Playwright works on, if it does on one's.
  constructor(directories, inCall) {
    this.directories = directories;
    this.inCall = inCall;
    this.owners = new Map(); // clients that have a directory, by its path
  }

  // From now on the browser's files are the client's whose call makes them.
  own(browser) {
    const { artifactsDir } = browser.options;
    const made = () => (this.inCall() ? this.make(this.inCall()) : artifactsDir);
    const named = () => (this.inCall() ? this.name(this.inCall()) : artifactsDir);
    Object.defineProperty(browser.options, 'artifactsDir', { get: made });
    // Each context reads it; Playwright itself makes it when a trace begins.
    Object.defineProperty(browser.options, 'tracesDir', { get: named });
    // Each context reads it, too. Chromium makes it for the first download; and where stock Firefox gives a file the name that its
    // page wants, it shall meet no file of another client.
    Object.defineProperty(browser.options, 'downloadsPath', { get: browserTypeOf(browser) === 'chromium' ? named : made });
  }

  // Returns the path of the client's directory, which may not be there yet.
  name(client) {
    if (!client.directory) {
      client.directory = this.directories.take();
      this.owners.set(client.directory, client);
    }
    return client.directory;
  }

  // Returns the path of the client's directory, which is there unless it was removed.
  make(client) {
    const directory = this.name(client);
    if (!client.hasDirectory) {
      client.hasDirectory = true;
      fs.mkdirSync(directory, { recursive: true }); // a trace may have made it
    }
    return directory;
  }

  // Returns the client that has this file, if one has.
  ownerOf(file) {
    return this.owners.get(path.dirname(file));
  }

  async remove({ directory }) {
    if (directory)
      await this.directories.giveBack(directory).catch(console.error);
    this.owners.delete(directory);
  }
}

module.exports = { ClientFiles };
