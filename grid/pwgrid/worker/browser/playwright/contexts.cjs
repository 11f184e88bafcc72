// How Playwright closes a context.
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

// Playwright's own close of this context has failed, hangs, or was never asked for.
async function closeAnyway(context, reason) {
  await context.doClose?.(reason).catch(() => {});
  await Promise.all([context._deleteAllDownloads?.(), context._deleteAllTempDirs?.()]).catch(() => {});
  context._didCloseInternal?.();
}

// A page of a context that is being closed may come to life after that, and would begin its video.
function withoutVideo(context) {
  context._options.recordVideo = undefined;
}

module.exports = { closeAnyway, closeToTheEnd, withoutVideo };
