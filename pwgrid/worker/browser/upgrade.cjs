// A client's upgrade, given to Playwright's HTTP server without a connection and a parser of its own for it: the proxy has
// parsed the head already.
'use strict';

const http = require('node:http');

// `headers`: those of the client's head that the proxy lets through, names in lower case.
function requestOf(path, headers, socket) {
  const request = new http.IncomingMessage(socket);
  request.method = 'GET';
  request.url = path;
  request.httpVersion = '1.1';
  Object.assign(request.headers, headers);
  return request;
}

module.exports = { requestOf };
