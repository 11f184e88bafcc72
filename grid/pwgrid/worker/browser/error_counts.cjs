// Errors of a browser server for which nobody waits: written to stderr, and told to its worker as counts, at most once a second.
'use strict';

const TELL_MS = 1_000;
const TEXT_CHARACTERS = 300;

class ErrorCounts {
  // `say` sends a message to the worker.
  constructor(say) {
    this.say = say;
    this.counts = {};
    this.last = null;
    this.timer = null;
  }

  // `kind`: `browser` (in what the browser says), `too long` (a message of the browser that was dropped), `client` (in one
  // session, which is named) or `other`.
  note(kind, error, session) {
    console.error(error);
    this.counts[kind] = (this.counts[kind] ?? 0) + 1;
    this.last = { text: String(error?.stack ?? error).slice(0, TEXT_CHARACTERS), session };
    this.timer ??= setTimeout(() => this.tell(), TELL_MS).unref();
  }

  tell() {
    const { counts, last } = this;
    this.counts = {};
    this.timer = null;
    this.say({ say: 'errors', counts, ...last });
  }
}

module.exports = { ErrorCounts };
