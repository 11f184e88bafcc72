// Ends sessions by time: a client that gives no sign of life, one that asks for nothing, one that has had its time.
//
// Idle means: no bytes from the client except pings and pongs. What the browser sends does not count, or a page that logs for
// ever would hold a slot for ever; a client that waits for one answer longer than the limit counts as idle.
'use strict';

const SILENT_PINGS = 3; // so many without an answer within the ping timeout

// Of one connection: what its client has asked for, and whether it lives.
class Silence {
  // Made when its WebSocket is open. `connection`: { ws, socket, isClosing, fail() }
  constructor(connection) {
    this.connection = connection;
    this.controlBytes = 0; // pings and pongs of the client, headers included
    this.askedBytes = connection.socket.bytesRead; // client bytes at the last check that saw some
    this.silentPings = 0;
    this.pinged = { read: 0, queued: 0, delivered: 0 };
    const countControl = data => { this.controlBytes += 6 + data.length; };
    connection.ws.on('ping', countControl);
    connection.ws.on('pong', countControl);
  }

  // Called SILENT_PINGS times within the ping timeout. Any bytes from the client are a sign of life, and so is reading what
  // was queued for it: a client busy with one large message cannot answer a ping. Counts calls, not time, so that clients do
  // not pay for a pause of this process.
  ping() {
    const { socket, ws, isClosing } = this.connection;
    if (isClosing)
      return;
    const handle = socket._handle;
    const queued = handle ? handle.writeQueueSize : 0;
    const now = { read: socket.bytesRead, queued, delivered: handle ? handle.bytesWritten - queued : 0 };
    const before = this.pinged;
    // One that is not read, since its browser takes no more, cannot answer. One that is not read since it does not read has something queued.
    const waits = socket.isPaused() && !queued;
    const alive = now.read !== before.read || (before.queued > 0 && now.delivered > before.delivered) || waits;
    this.pinged = now;
    this.silentPings = alive ? 0 : this.silentPings + 1;
    if (this.silentPings >= SILENT_PINGS)
      this.connection.fail('grid', 'ping timeout');
    else
      ws.ping();
  }

  // Whether the client has asked for anything since this was called before.
  hasAsked() {
    const bytes = this.connection.socket.bytesRead - this.controlBytes;
    const before = this.askedBytes;
    this.askedBytes = Math.max(bytes, before);
    return bytes > before;
  }
}

// Of one session, with all its connections.
class SessionTimeouts {
  // Made when its first WebSocket is open. `session`: { connections, kind, end() }
  constructor(session, options) {
    this.session = session;
    this.options = options;
    this.startedAt = performance.now();
    this.idleMs = 0;
  }

  check(elapsedMs) {
    const { connections, kind } = this.session;
    if (kind)
      return;
    const asked = [...connections].map(each => each.silence?.hasAsked()); // each of them is to note it
    this.idleMs = !connections.size || asked.includes(true) ? 0 : this.idleMs + elapsedMs; // one that is kept has a time of its own
    const { idleTimeoutS, maxDurationS } = this.options;
    if (idleTimeoutS && this.idleMs >= idleTimeoutS * 1000)
      this.session.end('grid', 'idle timeout');
    else if (maxDurationS && performance.now() - this.startedAt >= maxDurationS * 1000)
      this.session.end('grid', 'maximum duration');
  }
}

// Watches all sessions of a map, for ever.
function watchTimeouts(sessions, options) {
  if (options.pingTimeoutS)
    setInterval(() => sessions.forEach(pingAll), options.pingTimeoutS * 1000 / SILENT_PINGS).unref();
  const shortestS = Math.min(options.idleTimeoutS || Infinity, options.maxDurationS || Infinity);
  if (shortestS === Infinity)
    return;
  const periodMs = Math.min(Math.max(shortestS * 100, 50), 1000);
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    const elapsedMs = Math.min(now - last, 2 * periodMs); // a pause of this process is no silence of the client
    last = now;
    sessions.forEach(({ timeouts }) => timeouts?.check(elapsedMs));
  }, periodMs).unref();
}

function pingAll({ connections }) {
  for (const each of [...connections])
    each.silence?.ping();
}

module.exports = { SessionTimeouts, Silence, watchTimeouts };
