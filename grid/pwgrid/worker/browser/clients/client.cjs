// One client at Playwright's dispatcher, where its messages are parsed already: stops what playwright_messages.cjs refuses, and removes with
// the client what it made on the host or in the browser (files, processes, contexts, pages over CDP), also what was only being
// made when it went: Playwright ends the calls of a client that goes, and the browser does what they had asked for.
'use strict';

const { setTimeout: sleep } = require('node:timers/promises');

const { judgeCertificates } = require('../guard/client_certificates.cjs');
const { boundComparisons } = require('../guard/image_bounds.cjs');
const { judgeSize } = require('../guard/message_bounds.cjs');
const { ENDS_THE_SESSION, isWellFormed, judge } = require('../guard/playwright_messages.cjs');
const { override } = require('../override.cjs');
const { hasCallsUnderWay } = require('../playwright/calls.cjs');
const { sessionIn } = require('../playwright/cdp_sessions.cjs');
const { closeAnyway, closeToTheEnd, withoutVideo } = require('../playwright/contexts.cjs');
const { streamOf } = require('../playwright/streams.cjs');
const { WaitInfo, waitInfoOf } = require('../playwright/wait_info.cjs');
const { INTERNAL_ERROR } = require('../sessions/session.cjs');

const END_LIMIT_MS = 5_000; // for what a client has under way when it goes; then its contexts are closed all the same
const MALFORMED = 1007; // playwright's own code for a message that is not JSON
const ENDED_BY_CLIENT = 'client closed the browser';
const MESSAGE_FAILED = 'message failed';
const CLOSED_WITH_CLIENT = 'its client has gone';
const kClient = Symbol('client'); // property of a Playwright connection, and of a context
// What a command over CDP makes: how its answer names it, and the command that undoes it.
const UNDO = new Map([
  ['Target.createBrowserContext', { named: 'browserContextId', by: 'Target.disposeBrowserContext' }],
  ['Target.createTarget', { named: 'targetId', by: 'Target.closeTarget' }],
]);

class Client {
  // `clients`: those of this browser server
  constructor(session, clients) {
    this.session = session;
    this.unit = session.unit;
    this.clients = clients;
    this.connection = null;
    this.isGone = false;
    this.isOver = false; // gone, and what it had under way is done, or was waited for long enough
    this.underWay = new Set(); // promises of what goes on when its call has ended
    this.limit = null; // kept END_LIMIT_MS after it has gone, if that matters
    this.timer = null;
    this.removed = Promise.resolve(); // what is being removed now
    this.contexts = new Set(); // those that are not closed
    this.madeOverCdp = new Map(); // by id: the CDP command that undoes it
    this.processes = new Set();
    this.streams = new Set(); // of files
    this.language = undefined; // of the Playwright that it speaks for, as that says itself
    this.network = null; // of class ClientNetwork
    this.reused = null; // its view of the browser, with a context for reuse of its own
    this.directory = ''; // of its files, and whether that was made (client_files.cjs)
    this.hasDirectory = false;
    this.waits = new WaitInfo();
    this.judged = Promise.resolve(); // its last client certificates: one process at a time opens them
    // what the rules in playwright_messages.cjs read
    this.guard = clients.options.clientGuard;
    this.isShared = this.unit.isShared && clients.options.slots > 1;
    this.blocksFileUrls = clients.options.blockFileUrls;
    this.ownsTracing = false;
    this.isBrowserLevel = false;
  }

  get loopbackPorts() {
    return [...this.clients.loopbackPorts.addresses.keys()];
  }

  // Returns whether Playwright gets the message, in most cases at once. If not, answers it or ends the session.
  allows(connection, message) {
    if (!isWellFormed(message)) {
      this.session.protocolError(MALFORMED);
      return false;
    }
    const info = waitInfoOf(message);
    if (info && !this.waits.takes(info)) {
      connection.onmessage({ id: message.id });
      return false;
    }
    const certificates = message.params?.clientCertificates;
    return this.passes(connection, message) && (!certificates || this.allowsCertificates(connection, message, certificates));
  }

  // The same as a promise, for a message with client certificates.
  allowsCertificates(connection, message, certificates) {
    const judged = this.clients.running.run(this, () => this.judged.then(async () => {
      if (this.isGone)
        return false;
      const verdict = await judgeCertificates(certificates);
      return !this.isGone && this.obeys(verdict, connection, message);
    }));
    this.judged = judged.catch(() => {});
    return judged;
  }

  // Whether the rules let the message pass that need not wait for anything.
  passes(connection, message) {
    const dispatcher = connection._dispatcherByGuid.get(message.guid);
    if (!dispatcher)
      return true;
    if (message.method === 'send')
      this.isBrowserLevel = dispatcher._parent?._type === 'Browser';
    const verdict = judge(dispatcher._type, message.method, message.params, this) ?? judgeSize(message.method, message.params);
    return this.obeys(verdict, connection, message);
  }

  // Whether this verdict lets the message pass. If not, does what it says.
  obeys(verdict, connection, message) {
    if (!verdict)
      return true;
    if (verdict === ENDS_THE_SESSION) {
      connection.onmessage({ id: message.id, result: { result: {} } });
      setImmediate(() => this.session.end('client', ENDED_BY_CLIENT)); // after that answer
    } else {
      connection.onmessage({ id: message.id, error: { error: { name: 'Error', message: verdict, stack: '' } } });
    }
    return false;
  }

  // Playwright sends in the background what a client gets: an error there would reach nobody.
  ownMessages(connection) {
    this.connection = connection;
    const send = connection.onmessage;
    connection.onmessage = async message => {
      this.clients.hooks.onAnswer(this, message);
      try {
        await send(message);
      } catch (error) {
        this.cannotSend(message, error, send);
      }
    };
  }

  // An answer becomes an error. Without one of its events a client would wait for ever.
  cannotSend({ id, error: isError }, error, send) {
    if (id === undefined || isError)
      return this.fail(error);
    const text = `the answer cannot be sent: ${error.message}`;
    send({ id, error: { error: { name: 'Error', message: text, stack: '' } } })?.catch?.(again => this.fail(again));
  }

  // Its connection is not to be trusted any more.
  fail(error) {
    this.clients.hooks.onConnectionError(this, error);
    this.session.end('grid', MESSAGE_FAILED, INTERNAL_ERROR);
  }

  // Called for each new object of this client, before Playwright uses it.
  made(dispatcher) {
    if (dispatcher._type === 'Browser')
      this.ownBrowser(dispatcher);
    else if (dispatcher._type === 'APIRequestContext')
      this.clients.ownBodies(dispatcher._object, this);
    else if (dispatcher._type === 'CDPSession')
      this.ownCdpSession(dispatcher);
    else if (dispatcher._type === 'Page')
      boundComparisons(dispatcher);
    else if (dispatcher._type === 'Playwright')
      override(dispatcher, 'cleanup', cleanup => this.cleanup(cleanup));
    const stream = streamOf(dispatcher);
    if (stream)
      this.ownStream(stream);
  }

  // Returns its pages by id, the newest last.
  pages() {
    const dispatchers = [...this.connection?._dispatcherByGuid.values() ?? []];
    return new Map(dispatchers.filter(each => each._type === 'Page').map(each => [each._guid, each._object]));
  }

  ownBrowser(dispatcher) {
    override(dispatcher, 'newContextForReuse', async (newContextForReuse, params, progress) => {
      if (params.recordVideo)
        params.recordVideo.dir = undefined; // as Playwright does for newContext
      const made = await newContextForReuse(params, progress);
      dispatcher._isolatedContexts.add(made.context._object);
      return made;
    });
  }

  ownCdpSession(dispatcher) {
    override(dispatcher, 'send', async (send, params, progress) => {
      const { method } = params;
      const ends = method === 'Browser.close' || method === 'Browser.crash';
      if (ends)
        this.unit.browserIsGoing(true);
      try {
        return await send(params, progress);
      } catch (error) {
        if (ends && this.unit.browser.isConnected()) // the browser has refused it on this CDP session
          this.unit.browserIsGoing(false);
        throw error;
      }
    });
    const session = sessionIn(dispatcher._object);
    override(session, 'send', (send, method, params) => this.recordMade(method, send(method, params)));
  }

  // Returns `answer`, which makes what the CDP command has made a thing of this client.
  recordMade(method, answer) {
    const undo = UNDO.get(method);
    if (undo) {
      const { named, by } = undo;
      this.track(answer.then(({ [named]: id }) => this.madeOverCdp.set(id, [by, { [named]: id }])));
    }
    return answer;
  }

  // A stream that nobody reads keeps its file open, and the end of a video waits for it.
  ownStream(stream) {
    if (this.isGone)
      return void stream.destroy();
    this.streams.add(stream);
    stream.once('close', () => this.streams.delete(stream));
  }

  ownProcess(made) {
    this.processes.add(made);
    made.once('exit', () => this.processes.delete(made));
    if (this.isGone)
      killGroup(made);
  }

  // `making` is the promise of a context; so is what this returns.
  ownContext(making) {
    return this.track(making.then(context => {
      this.contexts.add(context);
      context[kClient] = this;
      if (this.isGone)
        withoutVideo(context);
      context.once('close', () => {
        this.contexts.delete(context);
        this.madeOverCdp.delete(context._browserContextId);
        withoutVideo(context);
      });
      closeToTheEnd(context, closed => this.track(closed));
      return context;
    }));
  }

  // Returns `promise`, for which the end of this client waits. What it has made when that wait is over is removed then.
  track(promise) {
    this.underWay.add(promise);
    const done = () => {
      this.underWay.delete(promise);
      if (this.isOver)
        this.remove();
    };
    promise.then(done, done);
    return promise;
  }

  // Called when its connection is over; what Playwright does then may have begun.
  gone() {
    if (this.isGone)
      return;
    this.isGone = true;
    this.clients.hooks.onGone(this);
    this.network?.close();
    this.processes.forEach(killGroup); // a video that nobody will see; ffmpeg may also be stuck
    this.streams.forEach(each => each.destroy());
    this.contexts.forEach(withoutVideo);
    if (this.connection && hasCallsUnderWay(this.connection)) // Playwright waits for all of them before it calls `cleanup`
      this.untilLimit();
  }

  // In place of Playwright's own, which closes the contexts that were given to this client.
  async cleanup(cleanup) {
    this.gone();
    await this.settled();
    const closed = cleanup().catch(() => {}); // a full disk, say
    await (this.contexts.size ? Promise.race([closed, this.untilLimit()]) : closed);
    await this.settled();
    clearTimeout(this.timer);
    await this.end();
  }

  async settled() {
    if (this.underWay.size)
      await Promise.race([Promise.allSettled([...this.underWay]), this.untilLimit()]);
  }

  untilLimit() {
    this.limit ??= new Promise(resolve => {
      this.timer = setTimeout(() => resolve(this.end()), END_LIMIT_MS).unref();
    });
    return this.limit;
  }

  end() {
    this.isOver = true;
    return this.remove();
  }

  // Removes what there is of it by now, again for each thing that comes later.
  remove() {
    this.removed = this.removed.then(() => this.removeAll()).catch(console.error);
    return this.removed;
  }

  async removeAll() {
    const { files, memory, running } = this.clients;
    const { browser, stopTracing } = this.unit;
    this.processes.forEach(killGroup);
    const undone = [...this.contexts].map(context => closeAnyway(context, CLOSED_WITH_CLIENT));
    if (this.ownsTracing) { // its stop fails where a page was recorded, which is gone by now and its record with it
      this.ownsTracing = false;
      undone.push(this.track(running.run(this, stopTracing).catch(() => { browser._tracingRecording = false; })));
    }
    for (const [method, params] of this.madeOverCdp.values())
      undone.push(browser._session.send(method, params));
    this.madeOverCdp.clear();
    if (undone.length)
      await Promise.race([Promise.allSettled(undone), sleep(END_LIMIT_MS, null, { ref: false })]);
    await files.remove(this);
    memory.clientLeft();
  }
}

// Playwright makes each process the leader of a group, except a few that end soon.
function killGroup(made) {
  try {
    process.kill(-made.pid, 'SIGKILL');
  } catch {
    made.kill('SIGKILL');
  }
}

module.exports = { Client, kClient };
