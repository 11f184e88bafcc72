// The source of browsers that one session has alone: hands out a warm one if there is one, launches others, and keeps as many warm as are
// wanted. Only a few start at once: a start takes a core for a tenth of a second.
'use strict';

const MOST_STARTING = 4;
const TRIES = 3; // starts, or first pages, in a row that may fail; then no browser can be made any more
const RETRY_MS = 1_000; // after the first of them that has failed; twice as long after each further one
const MOST_DOUBLINGS = 6;
const REFILL_MS = 250; // after a warm one was taken; its session shall have the processors for its first page
const QUIET_MS = 300; // without a session that asks for one; then those that are warm open their first page
const UNWANTED = 'nobody wants it any more';
const WARM_FOR_MS = 600_000; // where none is always warm: for so long after the last was asked for that might have been

class OwnBrowsers {
  // `launch(options, profile)` returns the promise of a unit, for what a client wants to be otherwise, {} for nothing. `warmUp(unit)` opens its
  // first page, which takes as much of a core as its start: so not while sessions come one after the other. `warm`: how many are
  // always warm, `most`: how many may be in use. `onCannotLaunch(error)` is called when TRIES starts in a row have failed, or the first
  // pages of as many, and none is in use.
  constructor({ launch, warmUp, warm, most, onCannotLaunch, quietMs = QUIET_MS, refillMs = REFILL_MS, retryMs = RETRY_MS, warmForMs = WARM_FOR_MS }) {
    Object.assign(this, { launch, warmUp, most, onCannotLaunch, quietMs, refillMs, retryMs, warmForMs });
    this.wanted = warm; // how many are to be warm now
    this.isAlwaysWarm = warm > 0;
    this.warm = []; // units
    this.untried = new WeakSet(); // those of them that have not opened a page
    this.quiet = null; // timer
    this.refill = null; // timer
    this.coming = 0; // starts under way of units that are like all others
    this.expecting = []; // sessions that get the next of these; an entry of this and the other lines is { resolve, reject }
    this.acquiring = new Map(); // session id -> its Wish, while it waits for a unit
    this.acquired = new Map(); // session id -> unit whose client has not come yet
    this.inUse = new Set(); // units, with those of `acquired`
    this.places = most; // that are free
    this.waiting = []; // sessions that wait for a place
    this.starting = 0;
    this.queued = []; // starts that wait for their turn
    this.failures = { start: 0, page: 0 }; // in a row
    this.retry = null; // timer; until then none is started that is to be warm
    this.isHeld = false; // the host is short of memory: the same
    this.cooling = null; // timer
    this.isClosed = false;
  }

  // Gets a unit for this session, with this profile if there is one. Fails with the error of its launch.
  async acquire(sessionId, options, profile = null) {
    if (!isOtherwise(options, profile))
      this.asked();
    clearTimeout(this.quiet);
    const wish = new Wish();
    this.acquiring.set(sessionId, wish);
    try {
      if (this.places > 0)
        this.places--;
      else
        await wish.turnIn(this.waiting);
      await this.acquireWithPlace(sessionId, wish, options, profile);
    } finally {
      if (this.acquiring.get(sessionId) === wish)
        this.acquiring.delete(sessionId);
      this.refill ??= setTimeout(() => this.fill(), this.refillMs).unref();
      this.warmUpLater();
    }
  }

  async acquireWithPlace(sessionId, wish, options, profile) {
    try {
      wish.check();
      const unit = await this.unitFor(wish, options, profile);
      this.inUse.add(unit);
      if (wish.isGivenBack)
        this.release(unit);
      else
        this.acquired.set(sessionId, unit);
    } catch (error) {
      this.freePlace();
      throw error;
    }
  }

  unitFor(wish, options, profile) {
    if (isOtherwise(options, profile))
      return this.start(() => this.launch(options, profile), wish);
    const warm = this.warm.pop();
    if (warm)
      return warm;
    const coming = wish.turnIn(this.expecting);
    this.startUpTo(this.expecting.length);
    return coming;
  }

  // Returns the unit that was acquired for this session; undefined if there is none, or its browser has ended.
  take(sessionId) {
    const unit = this.acquired.get(sessionId);
    this.acquired.delete(sessionId);
    return unit;
  }

  // Ends what was or is being acquired for this session, unless its client has come.
  giveBack(sessionId) {
    this.acquiring.get(sessionId)?.giveBack();
    this.acquiring.delete(sessionId);
    this.release(this.take(sessionId));
  }

  // The same for all sessions.
  giveBackAll() {
    for (const sessionId of [...this.acquiring.keys(), ...this.acquired.keys()])
      this.giveBack(sessionId);
  }

  // Takes one that was launched and tried elsewhere.
  add(unit) {
    this.warm.push(unit);
    this.fill();
  }

  // Ends the unit of a session that is over. Idempotent.
  release(unit) {
    if (!unit || !this.inUse.delete(unit))
      return;
    this.freePlace();
    unit.end();
  }

  // Called when the browser of a unit has ended.
  ended(unit) {
    for (const [sessionId, each] of this.acquired) {
      if (each === unit)
        this.acquired.delete(sessionId);
    }
    if (this.inUse.delete(unit))
      this.freePlace();
    this.warm = this.warm.filter(each => each !== unit);
    this.fill();
  }

  freePlace() {
    const next = this.waiting.shift();
    if (next)
      next.resolve();
    else
      this.places++;
  }

  // Keeps none warm from now on: no new client comes.
  close() {
    this.isClosed = true;
    this.cool();
  }

  // While the host is short of memory only sessions have browsers started.
  hold(isHeld) {
    this.isHeld = isHeld;
    this.fill();
  }

  asked() {
    if (this.isAlwaysWarm || this.isClosed)
      return;
    this.wanted = 1;
    clearTimeout(this.cooling);
    this.cooling = setTimeout(() => this.cool(), this.warmForMs).unref();
  }

  cool() {
    clearTimeout(this.cooling);
    this.wanted = 0;
    this.failures = { start: 0, page: 0 };
    for (const unit of this.warm.splice(0))
      unit.end();
  }

  // How many are to be there: as many as sessions expect and as are to be warm.
  get target() {
    return (this.isHeld || this.retry ? 0 : this.wanted) + this.expecting.length;
  }

  fill() {
    clearTimeout(this.refill);
    this.refill = null;
    this.startUpTo(this.target);
  }

  startUpTo(number) {
    while (this.warm.length + this.coming < number) {
      this.coming++;
      this.start(() => this.launchOne()).then(() => { this.coming--; }, error => {
        this.coming--;
        this.expecting.shift()?.reject(error);
        this.failed('start', error);
      });
    }
  }

  async launchOne() {
    if (this.warm.length + this.coming > this.target) // whoever expected it has given up
      return;
    const unit = await this.launch({});
    this.failures.start = 0;
    const next = this.expecting.shift();
    if (next)
      next.resolve(unit);
    else if (this.warm.length < this.wanted)
      this.keepWarm(unit);
    else
      unit.end();
  }

  keepWarm(unit) {
    this.warm.push(unit);
    this.untried.add(unit);
    this.warmUpLater();
  }

  warmUpLater() {
    clearTimeout(this.quiet);
    this.quiet = setTimeout(() => this.warmUpNext(), this.quietMs).unref();
  }

  async warmUpNext() {
    const unit = this.warm.find(each => this.untried.has(each));
    if (!unit)
      return;
    this.untried.delete(unit);
    try {
      await this.warmUp(unit);
      this.failures.page = 0;
    } catch (error) {
      this.opensNoPage(unit, error);
    }
    this.warmUpLater();
  }

  // Ends this warm one. If a session has got it meanwhile, its client sees for itself.
  opensNoPage(unit, error) {
    if (!this.warm.includes(unit))
      return;
    console.error(error);
    this.warm.splice(this.warm.indexOf(unit), 1);
    this.failed('page', error);
    unit.end();
  }

  failed(what, error) {
    const inRow = ++this.failures[what];
    if (inRow >= TRIES && !this.inUse.size)
      return this.onCannotLaunch(error);
    this.retry ??= setTimeout(() => {
      this.retry = null;
      this.fill();
    }, this.retryMs * 2 ** Math.min(inRow - 1, MOST_DOUBLINGS)).unref();
  }

  // Calls `launch` when it is its turn, unless this wish is given back by then.
  async start(launch, wish = new Wish()) {
    if (this.starting < MOST_STARTING)
      this.starting++;
    else
      await wish.turnIn(this.queued);
    try {
      wish.check();
      return await launch();
    } finally {
      const next = this.queued.shift();
      if (next)
        next.resolve();
      else
        this.starting--;
    }
  }
}

// What one session waits for. Once it is given back it leaves the line in which it stands: who is behind it is not to wait for what nobody
// wants.
class Wish {
  constructor() {
    this.isGivenBack = false;
    this.leave = () => {};
  }

  // Done when it is its turn in this line, whose front entry is to be resolved, or rejected, by whoever takes it out.
  turnIn(line) {
    return new Promise((resolve, reject) => {
      const entry = { resolve, reject };
      line.push(entry);
      this.leave = () => {
        const at = line.indexOf(entry);
        if (at < 0)
          return;
        line.splice(at, 1);
        reject(new Error(UNWANTED));
      };
    });
  }

  check() {
    if (this.isGivenBack)
      throw new Error(UNWANTED);
  }

  giveBack() {
    this.isGivenBack = true;
    this.leave();
  }
}

// Whether no browser will do that is like all others.
function isOtherwise(options, profile) {
  return profile !== null || Object.keys(options).length > 0;
}

module.exports = { OwnBrowsers };
