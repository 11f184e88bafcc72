// The front for Playwright's own protocol: one client's connection to Playwright's server of its unit.
'use strict';

const { Connection } = require('./connection.cjs');
const { tooManyValues } = require('../guard/message_bounds.cjs');
const { INTERNAL_ERROR, GOING_AWAY } = require('./session.cjs');

const UNSUPPORTED_DATA = 1003;
const NO_DEVTOOLS = 'at this address is Playwright\'s protocol: CDP clients connect to /cdp, or to http://<host>:<port>';

class PlaywrightConnection extends Connection {
  upgraded(ws) {
    if (!ws) // playwright has answered with an HTTP error that says why, and closes the socket
      return this.session.reasonIs('grid', 'handshake refused');
    super.upgraded(ws);
    const { emit, send } = ws;
    ws.emit = (event, data, ...rest) => event === 'message' && !this.takes(data) || emit.call(ws, event, data, ...rest);
    ws.prependOnceListener('message', data => {
      this.inOneWrite();
      this.refuseDevTools(data);
    });
    ws.send = (...message) => this.isRead() && send.apply(ws, message);
  }

  // Whether Playwright gets a message: to parse one of millions of values takes seconds. It is answered here, if it has an id in front.
  takes(data) {
    this.session.server.sessionInWork.begins(this.session.id);
    const refusal = tooManyValues(data);
    if (!refusal)
      return true;
    const id = /^\s*\{\s*"id"\s*:\s*(\d{1,15})\s*,/.exec(data.toString('latin1', 0, 100))?.[1];
    if (id)
      this.ws.send(JSON.stringify({ id: Number(id), error: { error: { name: 'Error', message: refusal, stack: '' } } }));
    else
      this.session.end('grid', 'too much work');
    return false;
  }

  // Playwright answers the first message with eight at once. A write takes as long as making one of them.
  inOneWrite() {
    this.socket.cork();
    setImmediate(() => this.socket.uncork());
  }

  // A client of the DevTools protocol is known by its first message, which has no guid. Only an answer in that protocol
  // reaches its user: such clients show no refusal and no close frame.
  refuseDevTools(data) {
    if (data.includes('"guid"'))
      return;
    const command = parsed(data);
    if (!Number.isInteger(command?.id) || !/^\w+\.\w+$/.test(command.method))
      return;
    this.ws.send(JSON.stringify({ id: command.id, error: { code: -32000, message: NO_DEVTOOLS } }));
    this.ws.send = () => {}; // Playwright's answer to the same message
    this.session.protocolError(UNSUPPORTED_DATA, NO_DEVTOOLS);
  }

  closedByServer(code) {
    if (code !== undefined && code !== GOING_AWAY)
      this.session.protocolError(code);
    else if (this.session.server.isStopping())
      this.session.end('grid', 'worker stopped');
    else
      this.session.end('browser', 'browser crashed', INTERNAL_ERROR);
  }

  closed() {
    this.session.client?.gone();
    super.closed();
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}

module.exports = { PlaywrightConnection };
