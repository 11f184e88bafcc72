// Notes whose message this process works on, in a file: once it is blocked it can tell nobody. Its worker reads that when it finds it hung
// (pwgrid/worker/browser/server.py).
'use strict';

const fs = require('node:fs');

const BYTES = 64; // of a session's id, filled up with blanks

// A write takes as long as a tenth of an evaluate(). So a session that goes on working is written once, and cleared at most so
// often; what blocks Node by itself in so short a time behind a message is taken for that session's work.
const CLEARED_AFTER_MS = 100;

class SessionInWork {
  constructor(path) {
    this.file = fs.openSync(path, 'w', 0o600);
    this.bytes = Buffer.alloc(BYTES);
    this.noted = '';
    this.clearing = null;
  }

  // Called when the work begins on a message of this session, from the browser or from its client.
  begins(session) {
    this.note(session);
    this.clearing ??= setTimeout(() => {
      this.clearing = null;
      this.note('');
    }, CLEARED_AFTER_MS).unref();
  }

  note(session) {
    if (session === this.noted)
      return;
    this.noted = session;
    try {
      this.bytes.fill(' ').latin1Write(session);
      fs.writeSync(this.file, this.bytes, 0, BYTES, 0);
    } catch { // a full disk: who is to blame is not known then
    }
  }
}

module.exports = { SessionInWork };
