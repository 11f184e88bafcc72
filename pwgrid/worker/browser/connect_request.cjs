// Makes the request of a client's upgrade for Playwright's HTTP server. The proxy has parsed the head, so that no second
// parser is needed here.
'use strict';

const http = require('node:http');

// `headers` are those of the client that the proxy passes on, with names in lower case.
function requestOf(path, headers, socket) {
  const request = new http.IncomingMessage(socket);
  request.method = 'GET';
  request.url = path;
  request.httpVersion = '1.1';
  Object.assign(request.headers, headers);
  return request;
}

module.exports = { requestOf };
