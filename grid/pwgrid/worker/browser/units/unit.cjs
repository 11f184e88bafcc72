// A unit: one browser with what belongs to it, its Playwright server, its directory, its connection, what is known of its health. Either
// all clients share it, each in contexts of its own, or one session has it alone.
'use strict';

const fs = require('node:fs');
const { randomBytes } = require('node:crypto');

const { BrowserMessages } = require('./browser_messages.cjs');
const { BrowserSigns } = require('./browser_signs.cjs');
const { EventOwners } = require('../clients/event_owners.cjs');

const GOING_GRACE_MS = 5_000; // for a browser that a client has told to end
const WRITE_MS = 10_000; // for one with a profile, which it writes at its end; then it is killed

class Unit {
  // `socketPath`: where its Playwright server listens. `directory`: TMPDIR of its browser, removed with it; null if it is the worker's.
  // `before`: the words before its browser's command that confine it, if they are not those of all others. `profile`: what it starts with
  // and is saved after it: { owner, name, directory }, as the worker has said; null for none.
  // `hooks`: onExit(unit, code, signal), onGoing(unit) GOING_GRACE_MS after its browser has begun to end, onSign(unit, what), onHung(unit)
  // for one that is not shared and has been silent for `silentMs`, and those of BrowserMessages with the unit in front
  constructor({ isShared, socketPath, directory, before, profile = null, signAfterMs, silentMs, hooks }) {
    Object.assign(this, { isShared, socketPath, directory, before, profile, signAfterMs, silentMs, hooks });
    this.wsPath = '/' + randomBytes(16).toString('hex');
    this.server = null; // Playwright's BrowserServer
    this.httpServer = null; // the one that it listens with
    this.browser = null; // Playwright's own, once that begins to serve it
    this.messages = null; // what the browser says, of class BrowserMessages
    this.signs = null; // of class BrowserSigns
    this.owners = null; // of the browser's events, of class EventOwners
    this.listeners = new Set(); // for the browser's end, as far as it is known whose they are
    this.tried = null; // the promise of the launcher's attempt at it that is under way
    this.isGoing = false; // a client has told its browser to end
    this.going = null;
    this.hasEnded = false;
    this.isInOrder = false; // it has ended by itself after it was told to: all that it had to write is on disk
    this.ended = null; // the promise of end(), once called
  }

  get process() {
    return this.server.process();
  }

  // Called with Playwright's BrowserServer once that is launched.
  launched(server) {
    this.server = server;
    const onExit = (code, signal) => {
      if (this.hasEnded)
        return;
      this.hasEnded = true;
      this.isInOrder = code === 0 && (this.isGoing || this.ended !== null);
      clearTimeout(this.going);
      this.signs?.close();
      this.removeDirectory();
      this.hooks.onExit(this, code, signal);
    };
    this.process.once('exit', onExit);
    if (this.process.exitCode !== null || this.process.signalCode !== null)
      onExit(this.process.exitCode, this.process.signalCode);
  }

  // Called once `browser` is there. `work(message, handle)` is called for each message of the browser.
  isKnown(clientOf, work) {
    const { browser } = this;
    this.owners = new EventOwners(browser, clientOf);
    browser.on('disconnected', () => this.browserIsGoing(true));
    this.listeners = new Set(browser.listeners('disconnected'));
    this.signs = new BrowserSigns(browser, this.signAfterMs, () => this.messages.isHeld, what => this.hooks.onSign(this, what));
    const told = name => (...args) => this.hooks[name](this, ...args);
    this.messages = new BrowserMessages(browser, {
      onDropped: told('onDropped'), onBroken: told('onBroken'), onError: told('onError'), work,
    });
    if (!this.isShared) // the worker has the shared one asked
      this.signs.askRegularly(this.silentMs, () => this.messages.silentMs(), () => this.hooks.onHung(this));
  }

  browserIsGoing(isGoing) {
    this.isGoing = isGoing;
    clearTimeout(this.going);
    if (isGoing && !this.ended)
      this.going = setTimeout(() => this.hooks.onGoing(this), GOING_GRACE_MS).unref();
  }

  // Ends the browser, and what it has on disk. Done when its process has ended. It is killed: nobody wants anything that it would write
  // at an orderly end, which takes it 20 ms of a core. One with a profile writes that.
  end() {
    this.ended ??= this.hasEnded ? Promise.resolve() : new Promise(resolve => {
      if (!this.profile) {
        this.process.once('exit', resolve);
        return this.kill();
      }
      clearTimeout(this.going);
      const timer = setTimeout(() => this.kill(), WRITE_MS);
      this.process.once('exit', () => {
        clearTimeout(timer);
        resolve();
      });
      this.server.close().catch(() => this.kill());
    });
    return this.ended;
  }

  kill() {
    this.server?.kill().catch(() => {});
  }

  makeDirectory() {
    if (this.directory)
      fs.mkdirSync(this.directory, { mode: 0o700 });
  }

  removeDirectory() {
    fs.rmSync(this.socketPath, { force: true }); // Playwright's server may be closed later
    if (this.directory)
      fs.promises.rm(this.directory, { recursive: true, force: true }).catch(console.error);
  }
}

module.exports = { Unit };
