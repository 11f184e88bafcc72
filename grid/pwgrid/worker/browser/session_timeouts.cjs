// Ends sessions by time: a client that gives no sign of life, one that asks for nothing, one that has had its time.
//
// Idle means: no bytes from the client except pings and pongs. What the browser sends does not count, or a page that logs for
// ever would hold a slot for ever; a client that waits for one answer longer than the limit counts as idle.
'use strict';

const SILENT_PINGS = 3; // so many without an answer within the ping timeout

class SessionTimeouts {
  // Made when the session's WebSocket is open. `session`: { ws, socket, kind, end() }
  constructor(session, options) {
    this.session = session;
    this.options = options;
    this.startedAt = performance.now();
    this.controlBytes = 0; // pings and pongs of the client, headers included
    this.idleBytes = session.socket.bytesRead; // client bytes at the last check that saw some
    this.idleMs = 0;
    this.silentPings = 0;
    this.pinged = { read: 0, queued: 0, delivered: 0 };
    const countControl = data => { this.controlBytes += 6 + data.length; };
    session.ws.on('ping', countControl);
    session.ws.on('pong', countControl);
  }

  // Called SILENT_PINGS times within the ping timeout. Any bytes from the client are a sign of life, and so is reading what
  // was queued for it: a client busy with one large message cannot answer a ping. Counts calls, not time, so that clients do
  // not pay for a pause of this process.
  ping() {
    const { socket, ws, kind } = this.session;
    if (kind)
      return;
    const handle = socket._handle;
    const queued = handle ? handle.writeQueueSize : 0;
    const now = { read: socket.bytesRead, queued, delivered: handle ? handle.bytesWritten - queued : 0 };
    const before = this.pinged;
    const alive = now.read !== before.read || (before.queued > 0 && now.delivered > before.delivered) || socket.isPaused();
    this.pinged = now;
    this.silentPings = alive ? 0 : this.silentPings + 1;
    if (this.silentPings >= SILENT_PINGS)
      this.session.end('grid', 'ping timeout');
    else
      ws.ping();
  }

  check(elapsedMs) {
    const { socket, kind } = this.session;
    if (kind)
      return;
    const bytes = socket.bytesRead - this.controlBytes;
    this.idleMs = bytes > this.idleBytes ? 0 : this.idleMs + elapsedMs;
    this.idleBytes = Math.max(bytes, this.idleBytes);
    const { idleTimeoutS, maxDurationS } = this.options;
    if (idleTimeoutS && this.idleMs >= idleTimeoutS * 1000)
      this.session.end('grid', 'idle timeout');
    else if (maxDurationS && performance.now() - this.startedAt >= maxDurationS * 1000)
      this.session.end('grid', 'maximum duration');
  }
}

// Watches all sessions of a map, for ever.
function watchTimeouts(sessions, options) {
  const each = does => sessions.forEach(session => session.timeouts && does(session.timeouts));
  if (options.pingTimeoutS)
    setInterval(() => each(timeouts => timeouts.ping()), options.pingTimeoutS * 1000 / SILENT_PINGS).unref();
  const shortestS = Math.min(options.idleTimeoutS || Infinity, options.maxDurationS || Infinity);
  if (shortestS === Infinity)
    return;
  const periodMs = Math.min(Math.max(shortestS * 100, 50), 1000);
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    const elapsedMs = Math.min(now - last, 2 * periodMs); // a pause of this process is no silence of the client
    last = now;
    each(timeouts => timeouts.check(elapsedMs));
  }, periodMs).unref();
}

module.exports = { SessionTimeouts, watchTimeouts };
