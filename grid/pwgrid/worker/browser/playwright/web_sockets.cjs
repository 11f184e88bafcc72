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

// In how many pieces the message is that is not whole; 0 if there is none.
function piecesOf({ _receiver: { _buffers, _fragments } }) {
  return _buffers.length + _fragments.length;
}

// Stands for the message that is not whole: another object after each message.
function messageOf(ws) {
  return ws._receiver._fragments;
}

function dropHalfMessage(ws) {
  Object.assign(ws._receiver, { _buffers: [], _bufferedBytes: 0, _fragments: [] });
}

// Lets it take messages of any size.
function takeAnySize(ws) {
  ws._receiver._maxPayload = 0;
}

module.exports = { answerNoPing, dropHalfMessage, isClosedByClient, messageOf, piecesOf, takeAnySize, webSocketOf };
