// Which calls of a client Playwright still works on, where its drivers differ.
'use strict';

// Whether there is one. Older drivers keep them for each object: in 1.58 a call that is not made to be ended holds up the end of its client.
function hasCallsUnderWay({ _activeProgressControllers: all, _dispatcherByGuid: dispatchers }) {
  return all ? all.size > 0 : [...dispatchers.values()].some(each => each._activeProgressControllers.size > 0);
}

module.exports = { hasCallsUnderWay };
