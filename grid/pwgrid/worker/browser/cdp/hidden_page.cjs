// Finds out whether the browser of a CDP session still opens pages: opens one, in a context of its own. The session's clients would be told
// of it, and who holds new pages would hold it, so its events are kept from them.
'use strict';

const { attach, sessionIn } = require('../playwright/cdp_sessions.cjs');

const EVENT_OF_TARGETS = '{"method":"Target.';

class HiddenPage {
  // `browser`: Playwright's own.
  constructor(browser) {
    this.browser = browser;
    this.ids = []; // of its context and its target, as far as they are known: no client knows them
  }

  // Whether a message of the browser (a Buffer) tells a client of this page.
  isIn(message) {
    return message.latin1Slice(0, EVENT_OF_TARGETS.length) === EVENT_OF_TARGETS && this.ids.some(each => message.includes(each));
  }

  // Done when the page has computed something, and is closed. Fails with an error of the browser, or after `timeoutMs`.
  async works(timeoutMs) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no page within ${timeoutMs / 1000} s`)), timeoutMs);
    });
    try {
      await Promise.race([this.attempt(), late]);
    } finally {
      clearTimeout(timer);
    }
  }

  async attempt() {
    const root = this.browser._session;
    const { browserContextId } = await root.send('Target.createBrowserContext', { disposeOnDetach: true });
    this.ids.push(browserContextId);
    const { targetId } = await root.send('Target.createTarget', { url: 'about:blank', browserContextId });
    this.ids.push(targetId); // some events name this alone
    const page = sessionIn(await attach(this.browser, targetId));
    const { result } = await page.send('Runtime.evaluate', { expression: '6 * 7' });
    if (result.value !== 42)
      throw new Error('the browser cannot compute 6 * 7');
    await root.send('Target.disposeBrowserContext', { browserContextId });
  }
}

module.exports = { HiddenPage };
