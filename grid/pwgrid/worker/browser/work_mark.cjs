// Notes whose message this process works on, in a file: once it is blocked it can tell nobody. Its worker reads that when it finds it hung
// (pwgrid/worker/browser/server.py).
'use strict';

const fs = require('node:fs');

const BYTES = 64; // of a session's id, filled up with blanks

class WorkMark {
  constructor(path) {
    this.file = fs.openSync(path, 'w', 0o600);
    this.noted = '';
    this.clearing = null;
  }

  // Called when the work begins on a message of this session, of the browser or of its client; empty if it is nobody's.
  begins(session) {
    this.note(session);
    this.clearing ??= setImmediate(() => {
      this.clearing = null;
      this.note('');
    });
  }

  note(session) {
    if (session === this.noted)
      return;
    this.noted = session;
    try {
      fs.writeSync(this.file, session.padEnd(BYTES), 0);
    } catch { // a full disk: who is to blame is not known then
    }
  }
}

module.exports = { WorkMark };
