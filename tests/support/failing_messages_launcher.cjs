// The launcher as it is, where a message to a client fails that has a certain text, as one that is too long for a string would.
'use strict';

const path = require('node:path');

const { stringify } = JSON;
JSON.stringify = (...args) => {
  const text = stringify(...args);
  if (text?.includes('a message that ' + 'fails'))
    throw new RangeError('Invalid string length');
  return text;
};

require(path.join(__dirname, '../../grid/pwgrid/worker/browser/launcher.cjs'));
