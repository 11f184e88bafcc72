// A program: a Playwright client in Node that tries what a grid gives: [playwright-core, endpoint, endpoint for an own browser, directory,
// with video]. Writes what it found as JSON.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const [core, endpoint, own, directory, withVideo] = process.argv.slice(2);
const { chromium } = require(core);

const refused = promise => promise.then(() => '', error => error.message);

async function main() {
  const found = {};
  const browser = await chromium.connect(endpoint, { timeout: 60_000 });
  const video = path.join(directory, 'video.webm'), file = path.join(directory, 'download.txt'), trace = path.join(directory, 'trace.zip');
  const context = await browser.newContext(withVideo ? { recordVideo: { dir: directory } } : {});
  const other = await browser.newContext();
  found.contexts = browser.contexts().length;
  await context.tracing.start({ snapshots: true, screenshots: true });
  const page = await context.newPage();
  await page.setContent('<title>probe</title><a download="hello.txt" href="data:text/plain,hello">get</a>');
  found.title = await page.title();
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('a')]);
  await download.saveAs(file);
  found.download = fs.readFileSync(file, 'utf8');
  const session = await context.newCDPSession(page);
  found.cdp = (await session.send('Runtime.evaluate', { expression: '6 * 7' })).result.value;
  found.fileUrl = await refused(page.goto('file:///etc/passwd').then(() => page.content()).then(text => {
    if (!text.includes('root:'))
      throw new Error('empty');
  }));
  found.serverFile = await refused(download._artifact?._channel.saveAs({ path: '/tmp/pwgrid-probe-must-not-exist' }) ?? Promise.resolve());
  await context.tracing.stop({ path: trace });
  found.trace = fs.statSync(trace).size > 1000;
  await context.close();
  if (withVideo) {
    await page.video().saveAs(video);
    found.video = fs.statSync(video).size > 0;
  }
  await other.close();
  await browser.close();
  const alone = await chromium.connect(own, { timeout: 60_000 });
  const onlyPage = await (await alone.newContext()).newPage();
  await onlyPage.setContent('<title>own</title>');
  found.own = await onlyPage.title();
  await alone.close();
  process.stdout.write(JSON.stringify(found));
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
