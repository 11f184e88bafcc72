// A program: writes what the browser server needs of the private objects of the driver whose directory it is given, and does not find: a JSON
// list, empty for a driver that is known (pwgrid/setup/drivers.py). Fails with a line that says why, where the driver does not work at all.
'use strict';

const { lookAt } = require('./look_at_driver.cjs');
const { missingIn } = require('./needs.cjs');

const LIMIT_MS = 60_000;

const found = {}; // the objects, by their names in needs.cjs
let inBackground = null; // the last error there: a browser server goes on after such a one, too

function end(missing) {
  process.stdout.write(JSON.stringify(missing), () => process.exit(0));
}

// A driver that fails on the way may do so for want of what is missing in the objects up to there: that says more than its error.
function endEarly(error) {
  const missing = missingIn(found, Object.keys(found));
  if (missing.length)
    return end(missing);
  process.stderr.write(`${firstLineOf(error)}\n`);
  process.exit(1);
}

function firstLineOf(error) {
  return String(error?.message ?? error).split('\n', 1)[0];
}

async function main() {
  setTimeout(() => {
    endEarly(`it opens no page within ${LIMIT_MS / 1000} s${inBackground ? `: ${firstLineOf(inBackground)}` : ''}`);
  }, LIMIT_MS).unref();
  process.on('uncaughtException', error => { inBackground = error; });
  const launched = await lookAt(process.argv[2], found);
  const missing = missingIn(found); // while all live
  await Promise.all(launched.map(each => each.kill()));
  end(missing);
}

main().catch(endEarly);
