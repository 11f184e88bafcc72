// Stands in for pwgrid/worker/browser/launcher.cjs, Playwright and the browser: same options, same IPC, no browser at all.
//
// It does the WebSocket handshake by hand on the raw sockets and echoes every message, fast enough for thousands of connects
// a second and thousands of idle sessions. What it does not have: HTTP, Playwright's protocol, pings, idle and duration limits.
//
// A session in CDP may have several connections, and is kept for `keepS` without any, as the real one's.
//
// Faults and extras, by environment variable:
//   FAKE_FAIL_START=<sentence>   says `failed` with it            FAKE_HANG_START=1         never says `ready`
//   FAKE_FAIL_TYPE=<browser>     only this type fails so          FAKE_FAIL_WHILE=<path>    only while the file is there
//   FAKE_START_MS=<n>            `ready` so much later            FAKE_VERSION=<x.y.z>      its Playwright version
//   FAKE_START_HELD_BY=<path>    not `ready` while the file is there
//   FAKE_HANG_CANARY=1           canaries fail at their timeout   FAKE_FAIL_CANARY=<text>   canaries fail at once
//   FAKE_IGNORE_CLOSE=<path>     while the file is there, sessions are not closed when told
//   FAKE_IGNORE_STOP=<path>      while the file is there, it has to be killed
//   FAKE_ACK_DELAY_MS=<n>        handles acknowledged later       FAKE_DIE_AFTER=<n>        SIGKILL to itself at session n
//   FAKE_GONE_AFTER=<n>          browser crash at session n       FAKE_TCP_PORT=<n>         serves there too (a direct path)
//   FAKE_FAIL_OWN=<sentence>     no session gets a browser alone   FAKE_HOLD_OWN=<path>      nor an answer while the file is there
//   FAKE_SICK_BROWSER=<path>     while the file has its pid, its browser answers nothing; that is a sign, and canaries hang
'use strict';

const fs = require('node:fs');
const net = require('node:net');
const path = require('node:path');
const { createHash } = require('node:crypto');

const GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const CLOSE_GRACE_MS = 3_000;
const MAX_HEAD_BYTES = 128 * 1024;
const OPCODE = { close: 8, ping: 9, pong: 10 };

const env = process.env;
const options = JSON.parse(env.PWGRID_LAUNCH);
const sessions = new Map(); // id -> Session
const unacknowledged = new Map(); // idx -> `closed` message
let closedIdx = 0;
let taken = 0;
let gone = false;
const BROWSER_KILLED = { kind: 'browser ended', detail: 'SIGKILL', signal: 'SIGKILL' };
let ready = null;
let heardAt = performance.now(); // when its browser has said something
let isSick = false; // its browser

function isThere(file) {
  return Boolean(file) && fs.existsSync(file);
}

function say(message) {
  if (process.connected)
    process.send(message, undefined, undefined, () => {});
}

class Session {
  constructor(id, socket) {
    this.id = id; // null: came over TCP, nobody is told of its end
    this.socket = socket;
    this.pending = null; // the beginning of a frame
    this.by = 'client';
    this.reason = { kind: 'client disconnected' };
    this.open = false;
    socket.on('error', () => {});
    socket.on('close', () => this.closed());
  }

  // `key`: the client's Sec-WebSocket-Key; `early`: what it sent behind its head, as latin-1.
  handshake(key, early) {
    if (!key) {
      this.by = 'grid';
      this.reason = { kind: 'handshake refused' };
      this.socket.end('HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n');
      return;
    }
    this.open = true;
    this.socket.on('data', chunk => this.data(chunk));
    const accept = createHash('sha1').update(key + GUID).digest('base64');
    this.socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n'
      + `Sec-WebSocket-Accept: ${accept}\r\n\r\n`);
    if (early)
      this.data(Buffer.from(early, 'latin1'));
  }

  data(chunk) {
    let buffer = chunk;
    if (this.pending) {
      this.pending.push(chunk);
      this.pendingBytes += chunk.length;
      if (this.pendingBytes < this.neededBytes)
        return;
      buffer = Buffer.concat(this.pending);
      this.pending = null;
    }
    let offset = 0;
    while (buffer.length - offset >= 2) {
      const start = offset;
      let length = buffer[offset + 1] & 127;
      let headerBytes = 6; // with the mask
      if (length === 126)
        headerBytes = 8;
      else if (length === 127)
        headerBytes = 14;
      if (buffer.length - start < headerBytes)
        return this.keep(buffer, start, headerBytes);
      if (length === 126)
        length = buffer.readUInt16BE(start + 2);
      else if (length === 127)
        length = Number(buffer.readBigUInt64BE(start + 2));
      const end = start + headerBytes + length;
      if (buffer.length < end)
        return this.keep(buffer, start, headerBytes + length);
      if (!(buffer[start + 1] & 128))
        return this.socket.destroy(); // clients mask
      const payload = buffer.subarray(start + headerBytes, end);
      unmask(payload, buffer.subarray(start + headerBytes - 4, start + headerBytes));
      this.frame(buffer[start], payload);
      offset = end;
    }
    if (offset < buffer.length)
      this.keep(buffer, offset, 6);
  }

  keep(buffer, start, neededBytes) {
    this.pending = [buffer.subarray(start)];
    this.pendingBytes = buffer.length - start;
    this.neededBytes = neededBytes;
  }

  frame(first, payload) {
    const opcode = first & 15;
    if (opcode === OPCODE.pong)
      return;
    if (opcode === OPCODE.close) {
      if (this.open)
        this.send(0x80 | OPCODE.close, payload);
      this.open = false;
      this.socket.end();
      this.onGoodbye?.(); // as the real one, which does not wait for the socket's end
      return;
    }
    if (this.open)
      this.send(opcode === OPCODE.ping ? 0x80 | OPCODE.pong : first, payload);
  }

  send(first, payload) {
    let header;
    if (payload.length < 126) {
      header = Buffer.from([first, payload.length]);
    } else if (payload.length < 65536) {
      header = Buffer.from([first, 126, payload.length >> 8, payload.length & 255]);
    } else {
      header = Buffer.alloc(10);
      header[0] = first;
      header[1] = 127;
      header.writeBigUInt64BE(BigInt(payload.length), 2);
    }
    if (payload.length < 4096)
      return void this.socket.write(Buffer.concat([header, payload]));
    this.socket.cork();
    this.socket.write(header);
    this.socket.write(payload);
    this.socket.uncork();
  }

  end(by, reason, code, text = options.closeTexts[reason.kind] ?? reason.kind) {
    this.by = by;
    this.reason = reason;
    if (!this.open)
      return void this.socket.destroy();
    this.open = false;
    const shown = Buffer.from(text).subarray(0, 123);
    this.send(0x80 | OPCODE.close, Buffer.concat([Buffer.from([code >> 8, code & 255]), shown]));
    this.timer = setTimeout(() => this.socket.destroy(), CLOSE_GRACE_MS);
  }

  closed() {
    clearTimeout(this.timer);
    if (this.id === null)
      return;
    sessions.delete(this.id);
    const message = {
      say: 'closed', idx: ++closedIdx, session: this.id, lease: this.clientFields?.lease,
      bytesIn: this.socket.bytesRead, bytesOut: this.socket.bytesWritten, by: this.by, reason: this.reason,
    };
    unacknowledged.set(message.idx, message);
    say(message);
    if (!process.connected && !sessions.size)
      process.exit(0);
  }
}

// A session in CDP: several connections, or for a while none. Each of them echoes, as any other.
class SharedSession {
  constructor(id) {
    this.id = id;
    this.connections = new Set();
    this.bytesIn = this.bytesOut = 0;
    this.by = 'client';
    this.reason = { kind: 'client disconnected' };
    this.isEnding = false;
  }

  join(socket, keepS) {
    const connection = new Session(null, socket);
    this.connections.add(connection);
    this.keepS = keepS;
    clearTimeout(this.timer);
    if (this.keptUntil)
      say({ say: 'resumed', session: this.id });
    this.keptUntil = 0;
    connection.onGoodbye = () => this.left(connection);
    socket.once('close', () => this.left(connection));
    return connection;
  }

  left(connection) {
    if (!this.connections.delete(connection))
      return;
    this.bytesIn += connection.socket.bytesRead;
    this.bytesOut += connection.socket.bytesWritten;
    if (this.connections.size)
      return;
    if (this.isEnding || !this.keepS)
      return this.closed();
    this.keptUntil = performance.now() + this.keepS * 1000;
    this.timer = setTimeout(() => this.end('grid', { kind: 'keep time over' }), this.keepS * 1000);
    say({ say: 'kept', session: this.id, keptS: this.keepS });
  }

  end(by, reason, code, text) {
    this.by = by;
    this.reason = reason;
    this.isEnding = true;
    clearTimeout(this.timer);
    if (!this.connections.size)
      return this.closed();
    for (const each of this.connections)
      each.end(by, reason, code, text);
  }

  closed() {
    this.socket = { bytesRead: this.bytesIn, bytesWritten: this.bytesOut };
    Session.prototype.closed.call(this);
  }
}

function unmask(payload, mask) {
  const [a, b, c, d] = mask;
  if (!(a | b | c | d))
    return;
  const whole = payload.length & ~3;
  let i = 0;
  for (; i < whole; i += 4) {
    payload[i] ^= a;
    payload[i + 1] ^= b;
    payload[i + 2] ^= c;
    payload[i + 3] ^= d;
  }
  for (; i < payload.length; i++)
    payload[i] ^= mask[i & 3];
}

function crash() {
  gone = true;
  for (const session of [...sessions.values()])
    session.end('browser', { kind: 'browser crashed' }, 1011);
  say({ say: 'gone', reason: BROWSER_KILLED });
}

function stop() {
  if (isThere(env.FAKE_IGNORE_STOP))
    return;
  for (const session of [...sessions.values()])
    session.end('grid', { kind: 'worker stopped' }, 1001);
  if (!sessions.size)
    process.exit(0);
  setTimeout(() => process.exit(0), CLOSE_GRACE_MS);
  setInterval(() => { if (!sessions.size) process.exit(0); }, 10);
}

function clientFields() {
  return Object.fromEntries([...sessions.values()].filter(each => each.clientFields).map(each => [each.id, each.clientFields]));
}

function connectionOf({ session: id, joins, keepS, clientFields }, socket) {
  let session = sessions.get(id);
  if (!session && joins)
    return null; // it has ended meanwhile
  if (!session) {
    session = new SharedSession(id);
    session.clientFields = clientFields;
    sessions.set(id, session);
  }
  return session.join(socket, keepS);
}

// Of each kept session, for how many seconds it still is.
function kept() {
  const now = performance.now();
  return Object.fromEntries(
    [...sessions.values()].filter(each => each.keptUntil).map(each => [each.id, (each.keptUntil - now) / 1000]));
}

function onMessage(message, socket) {
  if (socket) {
    const session = message.protocol === 'cdp' ? connectionOf(message, socket) : new Session(message.session, socket);
    if (!session)
      return void socket.end('HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n');
    if (message.protocol !== 'cdp') {
      session.clientFields = message.clientFields;
      sessions.set(message.session, session);
    }
    taken++;
    if (message.deadline && Number(process.hrtime.bigint()) / 1e9 > message.deadline)
      return session.end('grid', { kind: 'too late' });
    socket.setNoDelay?.(true); // the mark that we have it, as in the real one
    if (taken === Number(env.FAKE_DIE_AFTER))
      process.kill(process.pid, 'SIGKILL');
    if (gone)
      return session.end('browser', { kind: 'browser crashed' }, 1011);
    session.handshake(message.headers['sec-websocket-key'], message.early);
    if (taken === Number(env.FAKE_GONE_AFTER))
      crash();
    return;
  }
  if (message.do === 'close' && !isThere(env.FAKE_IGNORE_CLOSE))
    sessions.get(message.session)?.end('grid', message.reason, message.code, message.text);
  else if (message.do === 'ack')
    unacknowledged.delete(message.idx);
  else if (message.do === 'ping')
    say({ say: 'pong', id: message.id, browserSilentMs: performance.now() - heardAt });
  else if (message.do === 'ask_browser')
    whenWell(() => say({ say: 'browser_answered', id: message.id }));
  else if (message.do === 'acquire' && !isThere(env.FAKE_HOLD_OWN))
    say({ say: 'acquired', id: message.id, error: env.FAKE_FAIL_OWN || null });
  else if (message.do === 'sync') {
    say({ say: 'live', sessions: [...sessions.keys()], clientFields: clientFields(), kept: kept(), ready });
    unacknowledged.forEach(say);
  } else if (message.do === 'canary') {
    const error = env.FAKE_HANG_CANARY || isSick ? 'no context, page and evaluate in time' : env.FAKE_FAIL_CANARY || null;
    const done = why => say({ say: 'canary', id: message.id, ok: !why, error: why, ms: 1 });
    const timer = setTimeout(done, env.FAKE_HANG_CANARY || isSick ? message.timeoutS * 1000 : 0, error);
    if (isSick)
      whenWell(() => { clearTimeout(timer); done(null); });
  } else if (message.do === 'stop')
    stop();
}

function watchSickness() {
  const path = env.FAKE_SICK_BROWSER;
  const was = isSick;
  isSick = fs.existsSync(path) && fs.readFileSync(path, 'utf8').split(' ').includes(String(process.pid));
  if (isSick && !was)
    say({ say: 'sign', what: 'the fake is told to be sick' });
}

function whenWell(then) {
  if (isSick)
    return void setTimeout(whenWell, 10, then);
  heardAt = performance.now();
  then();
}

function serveDirectly(socket) {
  const session = new Session(null, socket);
  let head = '';
  const onData = chunk => {
    head += chunk.toString('latin1');
    const end = head.indexOf('\r\n\r\n');
    if (end < 0) {
      if (head.length > MAX_HEAD_BYTES)
        socket.destroy();
      return;
    }
    socket.off('data', onData);
    const key = /\r\nsec-websocket-key:[ \t]*([^\r\n]+?)[ \t]*\r\n/i.exec(head);
    session.handshake(key && key[1], head.slice(end + 4));
  };
  socket.on('data', onData);
}

function begin() {
  if (env.FAKE_START_HELD_BY && fs.existsSync(env.FAKE_START_HELD_BY))
    return void setTimeout(begin, 20);
  announce();
}

function announce() {
  const { version } = JSON.parse(fs.readFileSync(path.join(options.playwrightCore, 'package.json')));
  ready = {
    say: 'ready', pid: process.pid, browserPid: process.pid, browserVersion: 'fake',
    playwrightVersion: env.FAKE_VERSION || version,
  };
  say(ready);
}

if (env.FAKE_ACK_DELAY_MS) {
  const { _send: send } = process;
  process._send = function(message, ...rest) {
    if (message.cmd !== 'NODE_HANDLE_ACK')
      return send.call(this, message, ...rest);
    setTimeout(() => send.call(this, message, ...rest), Number(env.FAKE_ACK_DELAY_MS));
  };
}
process.on('SIGINT', () => {});
process.on('SIGHUP', () => {});
process.on('SIGTERM', stop);
process.on('message', onMessage);
process.on('disconnect', () => {
  if (!sessions.size)
    process.exit(0);
  setTimeout(() => process.exit(0), options.drainTimeoutS * 1000);
});
fs.rmSync(options.socketPath, { force: true });
net.createServer(serveDirectly).listen(options.socketPath);
if (env.FAKE_SICK_BROWSER)
  setInterval(watchSickness, 10);
if (env.FAKE_TCP_PORT)
  net.createServer({ noDelay: true }, serveDirectly).listen(Number(env.FAKE_TCP_PORT), '127.0.0.1');
const fails = env.FAKE_FAIL_START && (env.FAKE_FAIL_TYPE || options.browserType) === options.browserType
  && (!env.FAKE_FAIL_WHILE || fs.existsSync(env.FAKE_FAIL_WHILE));
if (fails) {
  say({ say: 'failed', error: env.FAKE_FAIL_START });
  setTimeout(() => process.exit(1), 100);
} else if (!env.FAKE_HANG_START) {
  setTimeout(begin, Number(env.FAKE_START_MS || 0));
}
