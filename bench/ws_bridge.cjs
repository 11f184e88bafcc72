// A bare bridge between one client's WebSocket and the DevTools pipe of a browser that it starts: what the hop through Node costs by itself.
// Arguments: playwright-core's directory, and the browser's command. Says its endpoint on stdout; ends with its stdin.
'use strict';

const http = require('node:http');
const path = require('node:path');
const { spawn } = require('node:child_process');

const [, , playwrightCore, ...command] = process.argv;
const { wsServer: WebSocketServer } = require(path.join(playwrightCore, 'lib', 'utilsBundle'));

const browser = spawn(command[0], command.slice(1), { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] });
const [, , , toBrowser, fromBrowser] = browser.stdio;
const server = http.createServer();

new WebSocketServer({ server, perMessageDeflate: false, maxPayload: 0 }).on('connection', ws => {
  let pieces = []; // of the message that is not whole yet
  ws.on('message', data => {
    toBrowser.cork();
    toBrowser.write(data);
    toBrowser.write('\0');
    toBrowser.uncork();
  });
  fromBrowser.on('data', chunk => {
    let start = 0;
    for (let end = chunk.indexOf(0); end >= 0; end = chunk.indexOf(0, start)) {
      pieces.push(chunk.subarray(start, end));
      ws.send(pieces.length === 1 ? pieces[0] : Buffer.concat(pieces), { binary: false });
      pieces = [];
      start = end + 1;
    }
    if (start < chunk.length)
      pieces.push(chunk.subarray(start));
  });
});

server.listen(0, '127.0.0.1', () => console.log(`ws://127.0.0.1:${server.address().port}`));
process.stdin.resume().on('end', () => browser.kill());
browser.on('exit', () => process.exit());
