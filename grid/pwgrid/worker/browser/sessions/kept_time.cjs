// How long a session is kept without a client: its browser waits for one to come back.
'use strict';

class KeptTime {
  // `limitS`: 0 if it is not kept. `onOver()` is called when no client has come back.
  constructor(limitS, onOver) {
    this.limitS = limitS;
    this.onOver = onOver;
    this.until = 0; // by performance.now(), while it is kept
    this.timer = null;
  }

  get isRunning() {
    return this.until > 0;
  }

  // For how many seconds it is still kept; null while it is not.
  get leftS() {
    return this.isRunning ? Math.max(0, (this.until - performance.now()) / 1000) : null;
  }

  begin() {
    this.until = performance.now() + this.limitS * 1000;
    this.timer = setTimeout(this.onOver, this.limitS * 1000);
  }

  // A client has come back.
  end() {
    this.stop();
    this.until = 0;
  }

  // The session ends, as one that is kept if it is that.
  stop() {
    clearTimeout(this.timer);
  }
}

module.exports = { KeptTime };
