// One session in the browser server: its connections, whether it is kept when the last of them has gone, and why it ended. What its clients
// say, and how, is the matter of its front (playwright_front.cjs, cdp_front.cjs).
'use strict';

const { KeptTime } = require('./kept_time.cjs');
const { SessionTimeouts } = require('./session_timeouts.cjs');

const GOING_AWAY = 1001;
const INTERNAL_ERROR = 1011;

class Session {
  // `server`: { options, sessionInWork, isStopping(), mayKeep(), onKept(session), onResumed(session), onOver(session, report) }.
  // `unit`: whose browser it gets. `keepS`: for how long it is kept when its last client has gone.
  constructor(id, server, unit, { clientFields, keepS = 0 } = {}) {
    this.id = id;
    this.server = server;
    this.unit = unit;
    this.clientFields = clientFields; // what the worker was told of the client
    this.keptTime = new KeptTime(keepS, () => this.end('grid', 'keep time over'));
    this.connections = new Set(); // of class Connection, that are not over
    this.client = null; // of class Client (client.cjs), if it speaks Playwright's protocol
    this.cdp = null; // of class CdpFront, if it speaks CDP
    this.by = '';
    this.kind = ''; // of the end's reason (EndReason in pwgrid/common/reasons.py); set once: the first one counts
    this.detail = '';
    this.timeouts = null; // of class SessionTimeouts, once its first WebSocket is open
    this.bytesIn = 0; // of connections that are over
    this.bytesOut = 0;
    this.isOver = false;
    this.whenOver = new Promise(resolve => { this.tellOver = resolve; });
  }

  // Returns its pages by id, the newest last.
  pages() {
    return this.client?.pages() ?? this.cdp?.pages() ?? new Map();
  }

  // Whether it has no client, and waits for one to come back.
  get isKept() {
    return this.keptTime.isRunning;
  }

  get canBeKept() {
    return this.keptTime.limitS > 0 && !this.kind && !this.unit.hasEnded && this.server.mayKeep();
  }

  // Called when one of its connections has become a WebSocket.
  opened() {
    this.timeouts ??= new SessionTimeouts(this, this.server.options);
    if (!this.isKept)
      return;
    this.keptTime.end();
    this.server.onResumed(this);
  }

  // Called once for each of its connections when that is over.
  left(connection) {
    const { socket } = connection;
    this.bytesIn += socket.bytesRead;
    this.bytesOut += socket.bytesWritten;
    this.connections.delete(connection);
    if (this.connections.size)
      return;
    if (this.canBeKept)
      this.keep();
    else
      this.over(connection.isLost ? 'connection lost' : 'client disconnected');
  }

  keep() {
    if (this.isKept) // who came meanwhile has not got in
      return;
    this.keptTime.begin();
    this.server.onKept(this);
  }

  protocolError(...error) {
    this.end(...protocolError(...error));
  }

  // Ends the session, its connections with a close frame. The record gets `kind` and `detail`; the client's user reads `text`, by default
  // the options' text for this kind.
  end(by, kind, code = GOING_AWAY, { detail = '', text = this.server.options.closeTexts[kind] ?? kind } = {}) {
    if (this.kind)
      return;
    this.reasonIs(by, kind, detail);
    if (!this.connections.size)
      return this.over();
    for (const each of [...this.connections])
      each.close(code, text);
  }

  // Says why it ends where its client is told otherwise, or not at all.
  reasonIs(by, kind, detail = '') {
    this.by = by;
    this.kind = kind;
    this.detail = detail;
  }

  // Reports the end, once.
  over(kind = '') {
    if (this.isOver)
      return;
    this.isOver = true;
    this.keptTime.stop();
    this.cdp?.close();
    Promise.resolve(this.server.onOver(this, {
      bytesIn: this.bytesIn, bytesOut: this.bytesOut,
      by: this.by || 'client',
      reason: { kind: this.kind || kind, detail: this.detail },
    })).then(this.tellOver);
  }
}

// What ends a session, or a connection, whose client has broken the protocol. `code` is of the WebSocket protocol.
function protocolError(code, text = `protocol error (${code})`) {
  return ['client', 'protocol error', code, { detail: String(code), text }];
}

module.exports = { Session, protocolError, GOING_AWAY, INTERNAL_ERROR };
