// Playwright's own browser, where its drivers differ.
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

module.exports = { browserTypeOf, overrideDownloads };
