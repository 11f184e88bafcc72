// What a client made Node keep is given back to the host when it has left: V8 collects its garbage only when it needs room, and a browser
// server that rests needs none.
'use strict';

const v8 = require('node:v8');
const vm = require('node:vm');

const MUCH_BYTES = 64 * 1024 * 1024;
const PAUSE_MS = 2_000; // from a client's end to the look at the memory: asking for that takes time that the next client would wait

class MemoryGiver {
  constructor() {
    v8.setFlagsFromString('--expose-gc');
    this.collect = vm.runInNewContext('gc');
    this.lowest = process.memoryUsage.rss(); // that was seen
    this.timer = null;
  }

  // Called when a client has left, and what it had is removed.
  clientLeft() {
    this.timer ??= setTimeout(() => this.giveBack(), PAUSE_MS).unref();
  }

  // Collects, which takes some ten milliseconds, where there may be much to give back.
  giveBack() {
    this.timer = null;
    const rss = process.memoryUsage.rss();
    this.lowest = Math.min(this.lowest, rss);
    if (rss - this.lowest > MUCH_BYTES)
      this.collect({ type: 'major', execution: 'async' });
  }
}

module.exports = { MemoryGiver };
