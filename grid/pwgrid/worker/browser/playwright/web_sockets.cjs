// What is used of the private parts of `ws`, the library of WebSockets that Playwright's driver has in it.
'use strict';

const KEY = 'websocket'; // describes the symbol under which a socket has its WebSocket

// Returns the WebSocket that this socket has become; undefined if it has not.
function webSocketOf(socket) {
  const key = Object.getOwnPropertySymbols(socket).find(each => each.description === KEY);
  return key && socket[key];
}

// Lets who uses it answer the pings of its client.
function answerNoPing(ws) {
  ws._autoPong = false;
}

// Whether its client has sent a close frame.
function isClosedByClient(ws) {
  return ws._closeFrameReceived;
}

// What is kept of a message that is not whole: whether that is nothing, and in how many pieces it is.
function halfMessageOf({ _receiver: { _bufferedBytes, _buffers, _fragments } }) {
  return { isEmpty: !_bufferedBytes && !_fragments.length, pieces: _buffers.length + _fragments.length };
}

function dropHalfMessage(ws) {
  Object.assign(ws._receiver, { _buffers: [], _bufferedBytes: 0, _fragments: [] });
}

// Lets it take messages of any size.
function takeAnySize(ws) {
  ws._receiver._maxPayload = 0;
}

module.exports = { answerNoPing, dropHalfMessage, halfMessageOf, isClosedByClient, takeAnySize, webSocketOf };
