// How Playwright closes a context, where its drivers differ.
'use strict';

const { override } = require('../override.cjs');

// Takes the place of a Playwright progress where nothing is to be aborted or has a time limit.
const ENDLESS = {
  race: promises => promises.length === 0 ? Promise.resolve() : Promise.race([promises].flat()),
  signal: new AbortController().signal,
};

// Lets no end of the call that closes this context end its close: Playwright would leave it half closed, and wait for ever when it closes it
// again. `track(closed)` gets the promise, and returns it.
function closeToTheEnd(context, track) {
  override(context, 'close', (close, progress, ...rest) => {
    if (typeof progress?.race !== 'function') // 1.58 has none here, and does not end it
      return track(close(progress, ...rest));
    return progress.race(track(close({ ...progress, ...ENDLESS }, ...rest)));
  });
}

module.exports = { closeToTheEnd };
