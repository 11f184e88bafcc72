// Playwright's own browser: what drivers name otherwise, what differs by the kind of browser, and what is used of its private parts.
'use strict';

const { override } = require('../override.cjs');

// `chromium`, `firefox` or `webkit`. 1.58 called it otherwise.
function browserTypeOf({ options: { browserType, name } }) {
  return browserType ?? name;
}

// Puts `replacement` in the place of what is called for each download, as `override` does. Until 1.59 it had another name.
function overrideDownloads(browser, replacement) {
  override(browser, typeof browser.downloadCreated === 'function' ? 'downloadCreated' : '_downloadCreated', replacement);
}

// Returns a view of the browser that has a context for reuse of its own: Playwright keeps one in each browser.
function viewForReuse(browser) {
  return Object.create(browser, {
    _contextForReuse: { value: undefined, writable: true },
    newContext: { value: (...args) => browser.newContext(...args) },
  });
}

// Returns the session with the browser itself, and what it is asked that costs the browser least: a method with its parameters.
function questionFor(browser) {
  if (browser._bidiPages)
    return [browser._browserSession, 'session.status', {}]; // Firefox over WebDriver BiDi
  if (browser._browserSession)
    return [browser._browserSession, 'Playwright.getInfo']; // WebKit
  if (browser._session)
    return [browser._session, 'Browser.getVersion']; // Chromium
  return [browser.session, 'Browser.getInfo']; // Playwright's own Firefox
}

// Returns the method of a command that the browser has not answered, by its id and that of its session; undefined if it is not known.
function commandOf({ _connection: { _sessions, browserSession, _browsingContextToSession } }, id, sessionId = '') {
  const sessions = _sessions ? [_sessions.get(sessionId)] : [browserSession, ..._browsingContextToSession?.values() ?? []];
  return sessions.map(each => each?._callbacks.get(id)).find(each => each)?.error.method;
}

// Returns the context that has this id in the browser, or over WebDriver BiDi the page of this id; undefined if none has.
function contextOf(browser, contextId, bidiPageId) {
  return browser._contexts?.get(contextId) ?? browser._bidiPages?.get(bidiPageId)?._browserContext;
}

module.exports = { browserTypeOf, commandOf, contextOf, overrideDownloads, questionFor, viewForReuse };
