// Whose a message of the browser is: Playwright handles an event of a page in nobody's name, and it may be the client's doing how long that
// takes.
'use strict';

const { contextOf } = require('../playwright/browsers.cjs');

class EventOwners {
  // `clientOf(context)` returns the client that a Playwright context belongs to.
  constructor(browser, clientOf) {
    this.browser = browser;
    this.clientOf = clientOf;
    this.contextIds = new Map(); // session of Chromium's or WebKit's protocol -> id of its context
  }

  // Returns the client, or undefined: a message about the browser, and some of Firefox.
  of(message) {
    const { method, params, sessionId } = message;
    if (method === 'Target.attachedToTarget')
      this.contextIds.set(params.sessionId, params.targetInfo.browserContextId);
    const context = contextOf(this.browser, this.contextIds.get(sessionId), params?.context);
    if (method === 'Target.detachedFromTarget')
      this.contextIds.delete(params.sessionId);
    return context && this.clientOf(context);
  }
}

module.exports = { EventOwners };
