// The streams of files that a client reads or writes. Until 1.60 Playwright closes none of them when their client goes, and none in any
// version that it makes after that.
'use strict';

// Returns the stream of a client's object; null if that has none, as for a directory.
function streamOf({ _type, _object }) {
  const stream = _type === 'Stream' ? _object.stream : _type === 'WritableStream' ? _object.streamOrDirectory : null;
  return typeof stream?.destroy === 'function' ? stream : null;
}

module.exports = { streamOf };
