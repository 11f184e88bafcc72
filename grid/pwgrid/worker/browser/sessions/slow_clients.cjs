// Back-pressure from a CDP session's clients to their browser: while one of them has not read what it was sent, nothing more is read of the
// browser's pipe, nor of that client. What the browser has to say meanwhile it keeps itself, and that is bounded here, too.
'use strict';

const fs = require('node:fs');

const MIB = 1024 * 1024;
const MOST_UNREAD_BYTES = 4 * MIB; // of one client
const MOST_TICKS = 20; // for which a client may keep others of the same browser waiting
const TICK_MS = 250;
const TEXT = `the grid closed this connection: its client did not read for ${MOST_TICKS * TICK_MS / 1000} s, and others of its browser waited`;

class SlowClients {
  // `messages`: what the browser says, of class BrowserMessages. `mostBytes`: how much the browser may keep.
  constructor(messages, browserPid, mostBytes) {
    Object.assign(this, { messages, browserPid, mostBytes });
    this.mostUnread = Math.min(MOST_UNREAD_BYTES, mostBytes);
    this.slow = new Map(); // connection -> for how many ticks it has been slow: a pause of this process is not its doing
    this.ticks = null; // timer, while there is one
    this.before = 0; // the browser's memory then
  }

  has(connection) {
    return this.slow.has(connection);
  }

  // Called when this connection has been sent something.
  sent(connection) {
    if (connection.ws.bufferedAmount <= this.mostUnread || this.slow.has(connection))
      return;
    this.slow.set(connection, 0);
    connection.pause();
    connection.socket.once('drain', () => this.forget(connection));
    if (this.ticks)
      return;
    this.messages.hold(true);
    this.before = residentBytes(this.browserPid);
    this.ticks = setInterval(() => this.tick(), TICK_MS).unref();
  }

  // Called when this connection has read everything, or is over.
  forget(connection) {
    if (!this.slow.delete(connection))
      return;
    connection.resume();
    if (this.slow.size)
      return;
    clearInterval(this.ticks);
    this.ticks = null;
    this.messages.hold(false);
  }

  tick() {
    const isTooMuch = residentBytes(this.browserPid) - this.before > this.mostBytes;
    for (const [connection, ticks] of this.slow) {
      this.slow.set(connection, ticks + 1);
      if (isTooMuch)
        connection.fail('grid', 'the client does not read');
      else if (ticks >= MOST_TICKS && connection.session.connections.size > 1)
        connection.fail('grid', 'the client does not read', undefined, { text: TEXT });
    }
  }
}

function residentBytes(pid) {
  try {
    return Number(/^VmRSS:\s+(\d+)/m.exec(fs.readFileSync(`/proc/${pid}/status`, 'latin1'))[1]) * 1024;
  } catch {
    return 0; // it has ended
  }
}

module.exports = { SlowClients };
