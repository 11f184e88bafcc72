// How the pages of a session can be shown, where drivers and browsers differ.
'use strict';

const TOO_OLD = 'this version of Playwright shows nobody a page of this browser: 1.63 or later does';

// Chromium has a screencast for each CDP session, so that a viewer has one of its own.
function hasOwnSessions({ browserContext }) {
  return typeof browserContext?.newCDPSession === 'function';
}

// Why nobody can be shown the page; empty when it can be. Until 1.61 a stock Firefox had a `startScreencast() {}`.
function whyNotShown(page) {
  if (hasOwnSessions(page))
    return '';
  const { screencast, delegate } = page;
  return typeof screencast?.addClient !== 'function' || /\{\s*\}$/.test(delegate.startScreencast) ? TOO_OLD : '';
}

// Whether somebody else has the screencast of a page that has one for all: a video or a trace of the session itself.
function hasOthers({ screencast }) {
  return screencast._clients.size > 1;
}

module.exports = { hasOthers, hasOwnSessions, whyNotShown };
