// Playwright's Node client uses what its API has, in a browser that it is connected to. argv: playwright-core's directory, the
// endpoint, a directory for files. Ends with 0 when all of it worked.
'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');

const [core, endpoint, directory] = process.argv.slice(2);
const playwright = require(core);
const { wsServer: WebSocketServer } = require(path.join(core, 'lib', 'utilsBundle'));

const HTML = `<!doctype html><title>official</title><h1 id=h title=t onclick="window.clicked=1">hello</h1>
<input id=text value=v><input id=box type=checkbox><input id=file type=file multiple><input id=dir type=file webkitdirectory>
<select id=select><option value=a>a<option value=b>b</select><button id=b onclick="this.textContent='pressed'">press</button>
<div id=drag draggable=true>drag</div><div id=drop ondrop="event.preventDefault()" ondragover="event.preventDefault()">drop</div>
<iframe name=inner srcdoc="<p>inner</p>"></iframe><a id=download download=x.txt href="data:text/plain,down">get</a>`;

const SELECTOR = { content: '({ query: (root, name) => root.querySelector(name), queryAll: () => [] })' };

async function servers() {
  const server = http.createServer((request, response) => {
    response.setHeader('Content-Type', request.url.endsWith('.js') ? 'text/javascript' : 'text/html');
    response.setHeader('Set-Cookie', 'seen=1');
    response.end(request.url === '/worker.js' ? 'self.onmessage = event => postMessage(event.data)' : HTML);
  });
  new WebSocketServer({ server }).on('connection', socket => socket.on('message', data => socket.send(String(data))));
  await new Promise(resolve => server.listen(0, '127.0.0.1', resolve));
  return [server, `127.0.0.1:${server.address().port}`];
}

async function elements(page) {
  await page.click('#h');
  await page.dblclick('#h');
  await page.hover('#h');
  await page.focus('#text');
  await page.fill('#text', 'filled');
  await page.type('#text', 'x');
  await page.press('#text', 'Enter');
  await page.check('#box');
  await page.uncheck('#box');
  await page.tap('#h');
  await page.selectOption('#select', 'b');
  await page.dispatchEvent('#b', 'click');
  await page.dragAndDrop('#drag', '#drop');
  await page.locator('#drop').drop({ files: { name: 'x', mimeType: 'text/plain', buffer: Buffer.from('x') } });
  await page.locator('#text').blur();
  for (const ask of ['isChecked', 'isDisabled', 'isEditable', 'isEnabled', 'isHidden', 'isVisible', 'inputValue'])
    await page[ask](ask === 'isChecked' ? '#box' : '#text');
  for (const ask of ['innerHTML', 'innerText', 'textContent'])
    await page[ask]('#h');
  assert.equal(await page.getAttribute('#h', 'title'), 't');
  assert.equal(await page.$eval('#h', each => each.id), 'h');
  assert.equal(await page.$$eval('input', each => each.length), 4);
  assert.equal(await page.locator('input').count(), 4);
  await page.locator('#h').highlight();
  await page.locator('#h').hideHighlight();
  await page.hideHighlight();
  await page.locator('#h').ariaSnapshot();
  await page.ariaSnapshot();
  await page.ariaSnapshotJSON();
  await page.locator('#h').normalize();
  await page.waitForSelector('#h');
  await page.waitForFunction('document.title');
  await page.waitForTimeout(1);
  await page.locator('#h')._expect('to.be.visible', { isNot: false, timeout: 5000 });
  await page._expectScreenshot({ timeout: 5000, isNot: false });
  await page.addScriptTag({ content: '1' });
  await page.addStyleTag({ content: 'p{}' });
  const picking = page.pickLocator().catch(() => {});
  await page.cancelPickLocator();
  await picking;
}

async function handles(page) {
  const handle = await page.$('#text');
  await page.$$('input');
  for (const ask of ['boundingBox', 'click', 'dblclick', 'hover', 'focus', 'innerHTML', 'innerText', 'textContent', 'inputValue',
    'isDisabled', 'isEditable', 'isEnabled', 'isHidden', 'isVisible', 'scrollIntoViewIfNeeded', 'selectText', 'screenshot', 'tap',
    'ownerFrame', 'contentFrame', 'jsonValue', 'getProperties'])
    await handle[ask]();
  await handle.fill('f');
  await handle.type('t');
  await handle.press('Enter');
  await handle.getAttribute('id');
  await handle.getProperty('value');
  await handle.dispatchEvent('click');
  await handle.waitForElementState('visible');
  await handle.evaluate(each => each.id);
  await handle.evaluateHandle(each => each);
  const box = await page.$('#box');
  await box.check();
  await box.isChecked();
  await box.uncheck();
  await (await page.$('#select')).selectOption('a');
  const body = await page.$('body');
  await body.$('#h');
  await body.$$('input');
  await body.$eval('#h', each => each.id);
  await body.$$eval('input', each => each.length);
  await body.waitForSelector('#h');
  await handle.dispose();
  const object = await page.evaluateHandle(() => ({ a: { b: 1 } }));
  await object.evaluate(each => each.a);
  const inner = await object.evaluateHandle(each => each.a);
  await object.getProperty('a');
  await object.getProperties();
  assert.deepEqual(await inner.jsonValue(), { b: 1 });
  await object.dispose();
  await (await page.frame('inner').frameElement()).dispose();
}

async function files(page) {
  const one = path.join(directory, 'one.txt');
  const folder = path.join(directory, 'folder');
  fs.mkdirSync(folder);
  fs.writeFileSync(one, 'one');
  fs.writeFileSync(path.join(folder, 'two.txt'), 'two');
  await page.setInputFiles('#file', one);
  await page.setInputFiles('#dir', folder);
  assert.equal(await page.$eval('#dir', each => each.files[0].name), 'two.txt');
  await (await page.$('#file')).setInputFiles({ name: 'b', mimeType: 'text/plain', buffer: Buffer.from('b') });
  await page.locator('#drop').drop({ files: one });
  const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.click('#file')]);
  await chooser.setFiles(one);
  for (const use of [each => each.saveAs(path.join(directory, 'down.txt')), each => each.createReadStream(), each => each.cancel()]) {
    const [download] = await Promise.all([page.waitForEvent('download'), page.click('#download')]);
    await use(download);
    if (await download.failure() === null) // one that was cancelled in time has no file
      await download.delete();
  }
  assert.equal(fs.readFileSync(path.join(directory, 'down.txt'), 'utf8'), 'down');
}

async function input(page) {
  await page.keyboard.down('a');
  await page.keyboard.up('a');
  await page.keyboard.insertText('x');
  await page.keyboard.type('y');
  await page.keyboard.press('z');
  await page.mouse.move(1, 1);
  await page.mouse.down();
  await page.mouse.up();
  await page.mouse.click(1, 1);
  await page.mouse.wheel(0, 1);
  await page.touchscreen.tap(1, 1);
}

async function looks(page) {
  await page.screenshot({ fullPage: true });
  await page.pdf();
  await page.emulateMedia({ colorScheme: 'dark' });
  await page.setViewportSize({ width: 400, height: 300 });
  await page.bringToFront();
  await page.requestGC();
  await page.pause();
  const framed = new Promise(resolve => page.screencast.start({ onFrame: resolve }));
  await page.evaluate(() => { document.body.style.background = 'red'; });
  await framed;
  await page.screencast.showActions();
  await page.screencast.hideActions();
  const overlay = await page.screencast.showOverlay('<b>overlay</b>');
  await overlay.dispose();
  await page.screencast.showChapter('chapter', { duration: 1 });
  await page.screencast.hideOverlays();
  await page.screencast.stop();
  await page.coverage.startJSCoverage();
  await page.coverage.stopJSCoverage();
  await page.coverage.startCSSCoverage();
  await page.coverage.stopCSSCoverage();
}

async function events(page, context, site) {
  await page.evaluate(() => { console.log('said'); setTimeout(() => { throw new Error('thrown'); }); });
  await page.waitForEvent('pageerror');
  await page.consoleMessages();
  await page.pageErrors();
  await page.requests();
  await page.clearConsoleMessages();
  await page.clearPageErrors();
  page.once('dialog', dialog => dialog.accept('text'));
  assert.equal(await page.evaluate(() => prompt('?')), 'text');
  page.once('dialog', dialog => dialog.dismiss());
  await page.evaluate(() => confirm('?'));
  await page.exposeFunction('twice', each => 2 * each);
  assert.equal(await page.evaluate(() => window.twice(21)), 42);
  await context.exposeBinding('fails', () => { throw new Error('no'); });
  await page.evaluate(() => window.fails()).catch(error => assert.match(error.message, /no/));
  await page.addLocatorHandler(page.locator('#b'), () => page.evaluate(() => document.querySelector('#b').remove()));
  await page.click('#h');
  await page.removeLocatorHandler(page.locator('#b'));
  const [worker] = await Promise.all([page.waitForEvent('worker'), page.evaluate(() => { window.w = new Worker('/worker.js'); })]);
  assert.equal(await worker.evaluate(() => 6 * 7), 42);
  await (await worker.evaluateHandle(() => self)).dispose();
  await Promise.all([worker.waitForEvent('console'), worker.evaluate(() => console.log('worker'))]);
  await context.addInitScript('window.added = 1');
  await (await page.addInitScript('window.own = 1')).dispose?.();
  await page.localStorage.setItem('k', 'v');
  assert.equal(await page.localStorage.getItem('k'), 'v');
  await page.localStorage.items();
  await page.localStorage.removeItem('k');
  await page.localStorage.clear();
  const response = await page.reload();
  for (const ask of ['body', 'httpVersion', 'allHeaders', 'securityDetails', 'serverAddr'])
    await response[ask]();
  await response.request().allHeaders();
  await response.request().response();
  await response.request().sizes();
  await page.goto(`http://${site}/next`);
  await page.goBack();
  await page.goForward();
  await page.setContent(HTML);
  await page.content();
  await page.title();
}

async function network(page, context, site) {
  await context.route('**/fulfilled', route => route.fulfill({ body: 'made up' }));
  await page.route('**/aborted', route => route.abort());
  await page.route('**/continued', route => route.continue({ headers: { x: 'y' } }));
  assert.equal(await page.evaluate(() => fetch('/fulfilled').then(each => each.text())), 'made up');
  await page.evaluate(() => fetch('/aborted').catch(() => {}));
  await page.evaluate(() => fetch('/continued').then(each => each.text()));
  await page.unrouteAll();
  await page.routeWebSocket('**/mocked', socket => {
    socket.send('first');
    socket.close();
  });
  await context.routeWebSocket('**/connected', socket => {
    const server = socket.connectToServer();
    socket.onMessage(message => server.send(message));
    server.onMessage(message => { socket.send(message); server.close(); });
  });
  await page.goto(`http://${site}/`);
  const first = name => page.evaluate(name => new Promise(resolve => {
    const socket = new WebSocket(`ws://${location.host}/${name}`);
    socket.onopen = () => socket.send('echo');
    socket.onmessage = event => resolve(event.data);
  }), name);
  assert.equal(await first('mocked'), 'first');
  assert.equal(await first('connected'), 'echo');
  await page.setExtraHTTPHeaders({ a: 'b' });
  await context.setExtraHTTPHeaders({ a: 'b' });
  await context.setOffline(false);
  await context.setHTTPCredentials({ username: 'u', password: 'p' });
  await context.addCookies([{ name: 'a', value: 'b', url: `http://${site}` }]);
  await context.cookies();
  await context.clearCookies();
  const response = await context.request.get(`http://${site}/`);
  assert.match(await response.text(), /official/);
  await response.dispose();
  await context.request.addCookies([{ name: 'a', value: 'b', url: `http://${site}` }]);
  await context.request.cookies();
  await context.request.clearCookies();
  await context.request.storageState();
  await context.storageState({ path: path.join(directory, 'state.json') });
  await context.setStorageState({ cookies: [], origins: [] });
}

async function records(page, context, site) {
  await context.tracing.start({ screenshots: true, snapshots: true, sources: true, name: 'named' });
  await context.tracing.group('group');
  await page.goto(`http://${site}/`);
  await context.tracing.groupEnd();
  await context.tracing.stopChunk({ path: path.join(directory, 'trace.zip') });
  await context.tracing.startChunk({ name: 'chunk', title: 'title' });
  await context.tracing.stop();
  for (const name of ['zipped.har.zip', 'plain.har']) {
    await context.tracing.startHar(path.join(directory, name));
    await page.reload();
    await context.tracing.stopHar();
    assert.ok(fs.statSync(path.join(directory, name)).size > 100);
  }
  const recorded = await page.context().browser().newContext({ recordHar: { path: path.join(directory, 'recorded.har') } });
  await (await recorded.newPage()).goto(`http://${site}/`);
  await recorded.close();
  await page.routeFromHAR(path.join(directory, 'recorded.har'));
  await page.reload();
  assert.ok(fs.statSync(path.join(directory, 'trace.zip')).size > 1000);
}

async function conditions(page, context) {
  await context.grantPermissions(['geolocation']);
  await context.setGeolocation({ latitude: 1, longitude: 2 });
  await context.clearPermissions();
  await page.clock.install({ time: 0 });
  await page.clock.fastForward(1000);
  await page.clock.pauseAt(5000);
  await page.clock.runFor(1000);
  await page.clock.resume();
  await page.clock.setFixedTime(0);
  await page.clock.setSystemTime(0);
  await context.credentials.install();
  const { id } = await context.credentials.create('site.test');
  await context.credentials.get();
  await context.credentials.delete(id);
  for (const [go, ...how] of [['next'], ['runTo', { file: 'none', line: 1 }], ['resume']]) {
    if (go !== 'runTo')
      await context.debugger.requestPause();
    const paused = new Promise(resolve => context.debugger.once('pausedstatechanged', resolve));
    const call = page.content();
    await paused;
    await context.debugger[go](...how);
    await call;
  }
  await Promise.all([context.waitForEvent('console'), page.evaluate(() => console.log('context'))]);
  await context._exposeConsoleApi();
  await context._startRecording({ language: 'javascript' }, {});
  await context._stopRecording();
}

async function browserWide(browser, page, context) {
  const own = await context.newCDPSession(page);
  assert.equal((await own.send('Runtime.evaluate', { expression: '6 * 7' })).result.value, 42);
  await own.detach();
  const wide = await browser.newBrowserCDPSession();
  assert.ok((await wide.send('Browser.getVersion')).product);
  await wide.detach();
  await browser.startTracing(page);
  assert.ok((await browser.stopTracing()).length > 100);
  await browser.unbind();
  await browser._newContextForReuse();
  await browser._disconnectFromReusedContext('done');
}

async function main() {
  const [server, site] = await servers();
  const browser = await playwright.chromium.connect(endpoint);
  await playwright.selectors.register('tag', SELECTOR);
  playwright.selectors.setTestIdAttribute('data-id');
  const context = await browser.newContext({ hasTouch: true, acceptDownloads: true, recordVideo: undefined });
  await playwright.selectors.register('late', SELECTOR);
  playwright.selectors.setTestIdAttribute('data-test');
  const page = await context.newPage();
  await page.goto(`http://${site}/`);
  for (const part of [elements, handles, files, input, looks])
    await part(page, context, site);
  for (const part of [events, network, records, conditions])
    await part(page, context, site);
  await browserWide(browser, page, context);
  const unloading = await context.newPage();
  await unloading.close({ runBeforeUnload: true });
  await page.close();
  await context.close();
  await browser.close();
  server.close();
  server.closeAllConnections();
}

main().catch(error => {
  console.error(error);
  process.exit(1);
});
