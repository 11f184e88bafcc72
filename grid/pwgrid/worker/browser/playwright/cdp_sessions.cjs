// Sessions of CDP. Playwright has an object for its clients, which it calls a CDPSession, and in it the session that speaks with the browser.
'use strict';

// Returns the session itself: { on(), send(), … }.
function sessionIn(cdpSession) {
  return cdpSession._session;
}

// Returns its id in the browser.
function idOf(session) {
  return session._sessionId;
}

// Makes a CDPSession with this target, beside all others that there are.
async function attach(browser, targetId) {
  return (await browser._clientRootSession()).attachToTarget(targetId);
}

// Says something to the browser, whose answer matters to nobody.
function tell(session, method, params) {
  session._sendMayFail(method, params);
}

// Ends it. Playwright's own `detach` first asks the page, which may be busy for ever.
function detach({ _parentSession, _sessionId }) {
  tell(_parentSession, 'Target.detachFromTarget', { sessionId: _sessionId });
}

module.exports = { attach, detach, idOf, sessionIn, tell };
