// What a client tells of its waits for events, which Playwright keeps in a list of its own, with all that is logged about them, until the
// client says that the wait is over. Until 1.60 that is a call of the object that is waited for, since then a message of its own kind.
'use strict';

const MOST_WAITS = 1_000; // that a client has at once
const MOST_CHARACTERS = 1024 * 1024; // of all that is kept of them
const OF_ITSELF = '__waitInfo__';
const OF_OBJECT = 'waitForEventInfo';

// Returns { waitId, phase, … } of a message, or null if it tells of no wait.
function waitInfoOf({ method, params }) {
  const info = method === OF_ITSELF ? params : method === OF_OBJECT ? params?.info : null;
  return typeof info === 'object' ? info : null;
}

// The waits of one client that Playwright keeps.
class WaitInfo {
  constructor() {
    this.waits = new Map(); // id -> characters that are kept of it
    this.characters = 0;
  }

  // Whether Playwright gets this message. The client does not mind: it is told only for traces and logs.
  takes(info) {
    const { waitId, phase } = info;
    const kept = this.waits.get(waitId);
    if (phase === 'after') {
      this.characters -= kept ?? 0;
      return this.waits.delete(waitId);
    }
    const characters = JSON.stringify(info).length;
    if (this.characters + characters > MOST_CHARACTERS || (phase === 'before' ? this.waits.size >= MOST_WAITS : kept === undefined))
      return false;
    this.waits.set(waitId, (kept ?? 0) + characters);
    this.characters += characters;
    return true;
  }
}

module.exports = { MOST_CHARACTERS, MOST_WAITS, WaitInfo, waitInfoOf };
