// Lists the pages of a CDP session's browser for the live view (live_view.cjs): Playwright is not attached to them, so it knows none.
'use strict';

const { attach } = require('../playwright/cdp_sessions.cjs');

class CdpPages {
  // `browser`: Playwright's own, which tells its root session of all pages (browser_signs.cjs)
  constructor(browser) {
    this.browser = browser;
    this.pages = new Map(); // by the ids of their targets, the newest last
    this.listeners = {
      'Target.targetCreated': ({ targetInfo }) => this.changed(targetInfo),
      'Target.targetInfoChanged': ({ targetInfo }) => this.changed(targetInfo),
      'Target.targetDestroyed': ({ targetId }) => this.gone(targetId),
    };
    for (const [event, listener] of Object.entries(this.listeners))
      browser._session.on(event, listener);
  }

  changed({ targetId, type, url }) {
    if (type !== 'page')
      return;
    if (!this.pages.has(targetId))
      this.pages.set(targetId, new CdpPage(this.browser, targetId));
    this.pages.get(targetId).address = url;
  }

  gone(targetId) {
    const page = this.pages.get(targetId);
    this.pages.delete(targetId);
    if (page)
      page.isGone = true;
  }

  close() {
    for (const [event, listener] of Object.entries(this.listeners))
      this.browser._session.off(event, listener);
  }
}

// As much of Playwright's page as the live view asks for.
class CdpPage {
  constructor(browser, targetId) {
    this.address = '';
    this.isGone = false;
    this.browserContext = {
      newCDPSession: () => attach(browser, targetId),
    };
  }

  mainFrame() {
    return { url: () => this.address };
  }

  isClosed() {
    return this.isGone;
  }
}

module.exports = { CdpPages };
