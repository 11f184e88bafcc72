// Playwright's own browser: what drivers name otherwise, and what is used of its private parts.
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

module.exports = { browserTypeOf, overrideDownloads, viewForReuse };
