// A client's upgrade, given to Playwright's HTTP server without a connection and a parser of its own for it: the proxy has
// parsed the head, and nearly always the worker has answered the client.
'use strict';

const http = require('node:http');

// The request of a whole head (latin-1), and what the client sent behind it.
function requestOf(head, socket) {
  const end = head.indexOf('\r\n\r\n');
  const [requestLine, ...lines] = head.slice(0, end).split('\r\n');
  const request = new http.IncomingMessage(socket);
  [request.method, request.url] = requestLine.split(' ');
  request.httpVersion = '1.1';
  for (const line of lines) {
    const colon = line.indexOf(':');
    const name = line.slice(0, colon).toLowerCase();
    const value = line.slice(colon + 1).trim();
    request.headers[name] = name in request.headers ? `${request.headers[name]}, ${value}` : value;
  }
  return { request, early: Buffer.from(head.slice(end + 4), 'latin1') };
}

// The client has its 101: the server's own is kept from it, and of any other answer it gets `frame` instead.
function keepAnswer(socket, frame) {
  const replace = (method, data) => {
    delete socket.write;
    delete socket.end;
    return String(data).startsWith('HTTP/1.1 101 ') || socket[method](frame);
  };
  socket.write = data => replace('write', data);
  socket.end = data => replace('end', data);
}

function closeFrame(code, text) {
  const reason = Buffer.from(text);
  return Buffer.concat([Buffer.from([0x88, 2 + reason.length, code >> 8, code & 255]), reason]);
}

module.exports = { requestOf, keepAnswer, closeFrame };
