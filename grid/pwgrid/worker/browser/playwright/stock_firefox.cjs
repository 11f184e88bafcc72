// Stock Firefox over WebDriver BiDi, where Playwright wants more than it has.
'use strict';

const OPTIONAL = 'emulation.setMediaFeaturesOverride';

// Stock Firefox up to 158 does not know a command without which Playwright makes no context. Where the browser answers
// `unknown command`, Playwright gets an empty success instead.
function succeedAtOptional({ WebSocket: { prototype } }) {
  const { send, emit } = prototype;
  const pending = new Set();
  let unknown = false;
  const succeed = id => Buffer.from(JSON.stringify({ type: 'success', id, result: {} }));
  prototype.send = function(data, ...rest) {
    if (this._isServer || typeof data !== 'string' || !data.includes(OPTIONAL))
      return send.call(this, data, ...rest);
    const { id, method } = JSON.parse(data);
    if (method !== OPTIONAL)
      return send.call(this, data, ...rest);
    if (unknown)
      return void process.nextTick(() => emit.call(this, 'message', succeed(id), false));
    pending.add(id);
    return send.call(this, data, ...rest);
  };
  prototype.emit = function(event, data, ...rest) {
    if (event === 'message' && pending.size && !this._isServer) {
      const { id, error } = JSON.parse(data.toString());
      if (pending.delete(id) && error === 'unknown command') {
        unknown = true;
        return emit.call(this, event, succeed(id), false);
      }
    }
    return emit.call(this, event, data, ...rest);
  };
}

module.exports = { succeedAtOptional };
