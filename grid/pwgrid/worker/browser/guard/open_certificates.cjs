// A program: opens the client certificates on stdin (JSON, as a client sends them to Playwright) as Playwright would, and writes
// what that took: { openingMs, of a core, keyBits, of the largest key }. It fails with none: Playwright tells the client.
'use strict';

const tls = require('node:tls');
const { createPrivateKey } = require('node:crypto');
const { PassThrough } = require('node:stream');
const { text } = require('node:stream/consumers');

function bytes(value) {
  return typeof value === 'string' && value ? Buffer.from(value, 'base64') : undefined;
}

// Returns undefined where `open` fails, as it does for what is no certificate.
function attempt(open) {
  try {
    return open();
  } catch {
    return undefined;
  }
}

// What Playwright makes of this one, as https://nodejs.org/api/tls.html#tlscreatesecurecontextoptions takes it.
function tlsOptions({ cert, key, pfx, passphrase }) {
  const given = { cert: bytes(cert), key: bytes(key), pfx: bytes(pfx) };
  return {
    cert: given.cert,
    key: given.key && [{ pem: given.key, passphrase }],
    pfx: given.pfx && [{ buf: given.pfx, passphrase }],
  };
}

function keys({ cert, key, pfx }) {
  const ofCertificate = context => new tls.TLSSocket(new PassThrough(), { isServer: true, secureContext: context })
    .getX509Certificate()?.publicKey;
  return [
    key && attempt(() => createPrivateKey({ key: key[0].pem, passphrase: key[0].passphrase })),
    pfx && attempt(() => ofCertificate(tls.createSecureContext({ pfx }))),
    cert && attempt(() => ofCertificate(tls.createSecureContext({ cert }))),
  ].filter(Boolean);
}

async function main() {
  const certificates = JSON.parse(await text(process.stdin));
  const all = [certificates].flat().filter(each => typeof each === 'object' && each !== null).map(tlsOptions);
  const before = process.cpuUsage();
  for (const options of all)
    attempt(() => tls.createSecureContext(options));
  const { user, system } = process.cpuUsage(before);
  const openingMs = Math.round((user + system) / 1000);
  const keyBits = Math.max(0, ...all.flatMap(keys).map(each => each.asymmetricKeyDetails?.modulusLength ?? 0));
  process.stdout.write(JSON.stringify({ openingMs, keyBits }));
}

main();
