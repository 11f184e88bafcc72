// Whether one browser works, as far as that is seen from here: asks it, and tells signs that it may open no pages any more. What follows
// from that its worker decides (pwgrid/worker/browser/health.py).
'use strict';

const { questionFor } = require('../playwright/browsers.cjs');

const TICK_MS = 500;
// Calls of clients for which the browser makes a context or a page.
const MAKES_PAGES = new Set(['newContext', 'newContextForReuse', 'newPage']);
// Commands of CDP that the process of a page answers: a client that has got a new page begins with one of them.
const ASKS_PAGE = new Set(['Page.enable', 'Page.getFrameTree', 'Runtime.enable']);
// How a renderer ends by its page's own doing, as Chromium says it. Other ends ("failed to launch", "killed") say something of the browser
// or the host.
const BY_THE_PAGE = new Set(['crashed', 'oom']);

class BrowserSigns {
  // `signAfterMs`: how long a context or a page may take. `isHeld()`: whether the browser is not heard now, by no fault of its own.
  // `onSign(what)` is called for each sign.
  constructor(browser, signAfterMs, isHeld, onSign) {
    this.isHeld = isHeld;
    this.browser = browser;
    this.signAfterMs = signAfterMs;
    this.onSign = onSign;
    this.calls = new Map(); // client -> its unanswered calls of MAKES_PAGES or ASKS_PAGE, by their ids
    this.unready = new WeakMap(); // page that the browser has not set up -> for how many milliseconds it has not
    this.opened = 0; // pages that clients have got
    this.cut = null; // { kind, afterMs }: which calls end their session, once the browser is known to be sick
    this.last = performance.now();
    this.silence = null; // { mostMs, silentMs, onHung }, once this asks the browser itself
    this.asked = null; // { ms }: for how long a question is unanswered
    this.ticks = setInterval(() => this.tick(), TICK_MS).unref();
    this.watchRenderers();
  }

  close() {
    clearInterval(this.ticks);
  }

  // Asks the browser from now on, and calls `onHung` once it has left a question unanswered for `mostMs` and `silentMs()` says that it has said
  // nothing else.
  askRegularly(mostMs, silentMs, onHung) {
    this.silence = { mostMs, silentMs, onHung };
  }

  // Done when the browser has answered a question; an error is an answer, too. Fails when its connection is over.
  async ask() {
    const [session, ...question] = questionFor(this.browser);
    await session.send(...question).catch(error => {
      if (error.type !== 'error')
        throw error;
    });
  }

  // Ends the sessions whose contexts and pages take longer than this, from now on.
  cutHanging(kind, afterMs) {
    this.cut = { kind, afterMs };
    this.endHanging();
  }

  // A client's call begins, is answered, or its client is gone.

  began(client, { id, method }) {
    if (!MAKES_PAGES.has(method) && !ASKS_PAGE.has(method))
      return;
    if (!this.calls.has(client))
      this.calls.set(client, new Map());
    this.calls.get(client).set(id, { method, ms: 0, isTold: false });
  }

  answered(client, { id, error }) {
    const calls = this.calls.get(client), call = calls?.get(id);
    if (!call)
      return;
    calls.delete(id);
    if (call.method === 'newPage' && !error) // a context needs no process of its own
      this.opened++;
  }

  gone(client) {
    this.calls.delete(client);
  }

  // Counts ticks, not time: a pause of this process is no silence of the browser.
  tick() {
    const now = performance.now();
    const ms = Math.min(now - this.last, 2 * TICK_MS);
    this.last = now;
    if (this.isHeld())
      return;
    for (const calls of this.calls.values()) {
      for (const call of calls.values()) {
        call.ms += ms;
        this.tellOnce(call, call.method);
      }
    }
    this.watchPages(ms);
    this.endHanging();
    this.watchSilence(ms);
  }

  watchSilence(ms) {
    const { silence, asked } = this;
    if (!silence)
      return;
    if (!asked) {
      const question = this.asked = { ms: 0 };
      const answered = () => {
        if (this.asked === question)
          this.asked = null;
      };
      return void this.ask().then(answered, () => {}); // else it has ended
    }
    asked.ms = Math.min(asked.ms + ms, silence.silentMs());
    if (asked.ms < silence.mostMs)
      return;
    this.silence = null;
    silence.onHung();
  }

  tellOnce(late, what) {
    if (late.isTold || late.ms < this.signAfterMs)
      return;
    late.isTold = true;
    this.onSign(`${what} is unanswered`);
  }

  // Also pages that no call waits for: popups.
  watchPages(ms) {
    for (const context of this.browser.contexts()) {
      for (const page of context.possiblyUninitializedPages?.() ?? []) {
        if (page.initializedOrUndefined())
          continue;
        const late = this.unready.get(page) ?? { ms: 0, isTold: false };
        this.unready.set(page, late);
        late.ms += ms;
        this.tellOnce(late, 'a new page');
      }
    }
  }

  endHanging() {
    if (!this.cut)
      return;
    for (const [client, calls] of this.calls) {
      if ([...calls.values()].some(each => each.ms >= this.cut.afterMs))
        client.session.end('grid', this.cut.kind);
    }
  }

  // Only Chromium tells how a renderer has ended, and only whoever asks for news of all pages.
  watchRenderers() {
    const session = this.browser._session;
    if (!session)
      return;
    session.on('Target.targetCrashed', ({ status }) => {
      if (!BY_THE_PAGE.has(status))
        this.onSign(`a page's process: ${status}`);
    });
    session.send('Target.setDiscoverTargets', { discover: true, filter: [{ type: 'page' }] }).catch(() => {}); // the browser has ended
  }
}

module.exports = { ASKS_PAGE, BrowserSigns };
