// Has a Chromium run its network service as a thread of the browser process instead of a process of its own: a start takes less of a
// core, and an end, too. A network service that crashes then takes its browser with it: that is for browsers of one session alone.
'use strict';

const ENABLE = '--enable-features=';
const FEATURE = 'NetworkServiceInProcess2';

// Returns the arguments of a Chromium with that feature. Of several such switches Chromium heeds the last one alone, and Playwright gives one;
// a client or a pool may give another one. Who disables the feature has a process.
function withNetworkThread(args) {
  const last = args.findLastIndex(each => String(each).startsWith(ENABLE));
  return last < 0 ? [ENABLE + FEATURE, ...args] : args.with(last, `${args[last]},${FEATURE}`);
}

module.exports = { withNetworkThread };
