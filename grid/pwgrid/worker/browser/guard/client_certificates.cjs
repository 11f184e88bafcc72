// Client certificates are opened in a process of their own before Playwright opens them: a PKCS 12 file and an encrypted key say
// themselves how often a key is derived, an RSA key how large it is, and OpenSSL cannot be interrupted in this process.
'use strict';

const childProcess = require('node:child_process');
const path = require('node:path');

const MOST_BYTES = 1024 * 1024; // of all certificates of a context, in base64
const MOST_OPENING_MS = 250; // of a core, for all of them. A file with 100,000 derivations takes 60, what openssl 3.0 packs by itself 3.
const MOST_KEY_BITS = 8192; // signing with it takes less than 200 ms, with 16,384 bits 1.4 s
const LIMIT_MS = 5_000; // for that process, on a busy host too
const OPENER = path.join(__dirname, 'open_certificates.cjs');

// Returns the sentence of a refusal, or null. What Playwright cannot open it refuses itself. `certificates` are those of a
// message, whatever they may be.
async function judgeCertificates(certificates) {
  const text = JSON.stringify(certificates);
  if (text.length > MOST_BYTES)
    return `client certificates of ${text.length} bytes are too large for the grid, which takes ${MOST_BYTES}`;
  const { openingMs, keyBits } = await open(text);
  if (openingMs > MOST_OPENING_MS)
    return `opening these client certificates takes too long for the grid, which takes ${MOST_OPENING_MS} ms: pack them with fewer iterations`;
  if (keyBits > MOST_KEY_BITS)
    return `a client certificate's key of ${keyBits} bits is too large for the grid, which takes ${MOST_KEY_BITS}`;
  return null;
}

// Returns { openingMs, keyBits }, where openingMs is Infinity if it was not done in time.
function open(text) {
  return new Promise((resolve, reject) => {
    const opener = childProcess.spawn(process.execPath, [OPENER], { env: {}, stdio: ['pipe', 'pipe', 'ignore'] });
    const timer = setTimeout(() => opener.kill('SIGKILL'), LIMIT_MS);
    let said = '';
    opener.stdout.setEncoding('utf8').on('data', piece => { said += piece; });
    opener.stdin.on('error', () => {}); // it has ended; `close` says so
    opener.on('error', reject);
    opener.on('close', () => {
      clearTimeout(timer);
      resolve(said ? JSON.parse(said) : { openingMs: Infinity, keyBits: 0 });
    });
    opener.stdin.end(text);
  });
}

module.exports = { judgeCertificates };
