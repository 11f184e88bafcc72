// A program: writes what the browser server needs of the private objects of the driver whose directory it is given, and does not find: a JSON
// list, empty for a driver that is known (pwgrid/setup/drivers.py). Fails with a line that says why, where the driver does not work at all.
'use strict';

const { lookAt } = require('./look_at_driver.cjs');
const { missingIn } = require('./needs.cjs');

const LIMIT_MS = 60_000;

const found = {}; // the objects, by their names in needs.cjs
let inBackground = null; // the last error there: a browser server goes on after such a one, too

// A driver that fails on the way may do so for want of what is missing in the objects up to there: that says more than its error.
function end(error) {
  const missing = missingIn(found, error ? Object.keys(found) : undefined);
  if (error && !missing.length) {
    process.stderr.write(`${firstLineOf(error)}\n`);
    process.exit(1);
  }
  process.stdout.write(JSON.stringify(missing), () => process.exit(0));
}

function firstLineOf(error) {
  return String(error?.message ?? error).split('\n', 1)[0];
}

async function main() {
  setTimeout(() => {
    end(`it opens no page within ${LIMIT_MS / 1000} s${inBackground ? `: ${firstLineOf(inBackground)}` : ''}`);
  }, LIMIT_MS).unref();
  process.on('uncaughtException', error => { inBackground = error; });
  const launched = await lookAt(process.argv[2], found);
  await Promise.all(launched.map(each => each.kill()));
}

main().then(() => end(null), end);
