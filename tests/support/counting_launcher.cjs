// The launcher as it is. After a SIGUSR2 it says on stderr how many listeners wait for the end of a browser.
'use strict';

const { EventEmitter } = require('node:events');
const path = require('node:path');

const { on } = EventEmitter.prototype;
const heard = new Set();
EventEmitter.prototype.on = EventEmitter.prototype.addListener = function(event, listener) {
  if (event === 'disconnected')
    heard.add(this);
  return on.call(this, event, listener);
};
let asked = 0;
process.on('SIGUSR2', () => {
  console.error(`asked ${++asked} times, listeners: ${[...heard].reduce((sum, each) => sum + each.listenerCount('disconnected'), 0)}`);
});

require(path.join(__dirname, '../../grid/pwgrid/worker/browser/launcher.cjs'));
