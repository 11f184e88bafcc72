// A program: live sessions of Playwright in Node that must go on, and one client that comes and goes: [playwright-core, endpoint, page, sessions].
// Says what happens as lines of JSON: {clicked: n}, {lost: n, why}, {came: true}, {refused: why}. Ends with its input.
'use strict';

const [core, endpoint, url, sessions] = process.argv.slice(2);
const { chromium } = require(core);

const BEAT_MS = 500, COME_MS = 200, PATIENCE_MS = 30_000;
let isOver = false;

const say = what => process.stdout.write(JSON.stringify(what) + '\n');
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const connect = () => chromium.connect(endpoint, { timeout: PATIENCE_MS });

async function lives(number) {
  try {
    const browser = await connect();
    const page = await browser.newPage();
    await page.goto(url);
    const button = page.locator('button');
    for (let clicks = 1; !isOver; clicks++) {
      await button.click();
      const text = await button.innerText();
      if (text !== String(clicks))
        throw new Error(`${text} instead of ${clicks}`);
      say({ clicked: number });
      await pause(BEAT_MS);
    }
    await browser.close();
  } catch (error) {
    say({ lost: number, why: error.message });
  }
}

async function comes() {
  while (!isOver) {
    try {
      await (await connect()).close();
      say({ came: true });
    } catch (error) {
      say({ refused: error.message });
    }
    await pause(COME_MS);
  }
}

process.stdin.on('end', () => isOver = true).resume();
Promise.all([comes(), ...Array.from({ length: Number(sessions) }, (_, number) => lives(number))]).then(() => process.exit(0));
