// The direct side of the benches with real browsers: Playwright's own launchServer() with no grid around it, on a TCP port.
// argv: playwright-core's directory, executable path ('' = Playwright's own). Says one line: the endpoint and the pids; ends with its stdin.
'use strict';

const [core, executablePath] = process.argv.slice(2);

(async () => {
  const { chromium } = require(core);
  const server = await chromium.launchServer({ headless: true, executablePath: executablePath || undefined });
  // As warm as the grid's: one context, page and evaluate.
  const browser = await chromium.connect(server.wsEndpoint());
  const page = await browser.newPage();
  await page.evaluate('6 * 7');
  await browser.close();
  console.log(JSON.stringify({ endpoint: server.wsEndpoint(), browserPid: server.process().pid }));
  process.stdin.resume().on('end', () => server.close().finally(() => process.exit(0)));
})();
