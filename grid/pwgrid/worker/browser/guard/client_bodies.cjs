// Bodies of answers to a client's own requests (`context.request`): Node reads and unpacks them, and keeps them until they are disposed of. A
// megabyte of gzip may unpack to a gigabyte, so the bytes are counted as they come.
'use strict';

const http = require('node:http');
const https = require('node:https');
const zlib = require('node:zlib');

const MIB = 1024 * 1024;
const MOST_BYTES = 128 * MIB; // of one body; a client can be sent 192 MiB
const MOST_OF_CLIENT = 256 * MIB; // of all bodies that come and are kept

// Of what is unpacked at once: so large that it goes back to the system as soon as it is freed (launch.py).
const CHUNK_BYTES = 256 * 1024;

const UNPACKERS = ['createGunzip', 'createBrotliDecompress', 'createInflate', 'createInflateRaw', 'createUnzip', 'createZstdDecompress'];

class Bodies {
  constructor() {
    this.bytes = 0; // of those that are not whole yet, and of those that Playwright keeps
  }

  // Counts what comes into this map of Playwright's and leaves it.
  count(map) {
    const { set, delete: remove, clear } = map;
    map.set = (id, body) => {
      if (this.bytes + body.length > MOST_OF_CLIENT)
        throw tooMuch();
      this.bytes += body.length - (map.get(id)?.length ?? 0);
      return set.call(map, id, body);
    };
    map.delete = id => {
      this.bytes -= map.get(id)?.length ?? 0;
      return remove.call(map, id);
    };
    map.clear = () => {
      for (const { length } of map.values())
        this.bytes -= length;
      clear.call(map);
    };
  }
}

// `whose()` returns the client for which this process works now, if it is known.
function boundBodies(whose) {
  const bodies = new WeakMap(); // client -> Bodies

  const of = client => {
    if (!bodies.has(client))
      bodies.set(client, new Bodies());
    return bodies.get(client);
  };

  // Ends the stream with an error when too much has come out of it.
  const bound = (stream, client) => {
    const own = of(client), { push } = stream;
    let bytes = 0;
    stream.push = (chunk, ...rest) => {
      if (chunk) {
        bytes += chunk.length;
        own.bytes += chunk.length;
        if (!stream.destroyed && (bytes > MOST_BYTES || own.bytes > MOST_OF_CLIENT)) {
          stream.emit('error', tooMuch()); // before `destroy`, which would only tell Playwright that it was aborted
          stream.destroy();
        }
      }
      return push.call(stream, chunk, ...rest);
    };
    const over = () => { // Playwright has it whole, or will not get it
      own.bytes -= bytes;
      bytes = 0;
    };
    stream.once('end', over);
    stream.once('close', over);
  };

  for (const module of [http, https]) {
    const { request } = module;
    module.request = function(...args) {
      const made = request.apply(this, args);
      const client = whose();
      if (client)
        made.prependOnceListener('response', response => bound(response, client));
      return made;
    };
  }
  for (const name of UNPACKERS.filter(each => zlib[each])) {
    const create = zlib[name];
    const createBounded = (given, ...args) => {
      const client = whose();
      if (!client)
        return create(given, ...args);
      const made = create({ ...given, chunkSize: CHUNK_BYTES }, ...args);
      bound(made, client);
      return made;
    };
    Object.defineProperty(zlib, name, { value: createBounded }); // it is read-only
  }

  // Called for what Playwright sends a client's requests with; its map of bodies is counted from now on.
  return ({ fetchResponses }, client) => of(client).count(fetchResponses);
}

function tooMuch() {
  return new Error(`the body is too large for the grid: one has at most ${MOST_BYTES / MIB} MiB unpacked, and all that a session keeps `
    + `${MOST_OF_CLIENT / MIB}; dispose() of answers that are not needed any more`);
}

module.exports = { boundBodies };
