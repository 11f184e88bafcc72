// A fake browser server with six more processes below it, as many as a browser has: for the cost of metering their memory.
'use strict';

const path = require('node:path');
const { spawn } = require('node:child_process');

const BALLAST = 'import signal; held = bytearray(b"x") * (8 << 20); signal.pause()';

for (let n = 0; n < 6; n++)
  spawn(process.env.FAKE_HERD_PYTHON, ['-I', '-S', '-c', BALLAST], { stdio: 'ignore' });
require(path.join(__dirname, '..', 'tests', 'support', 'fake_launcher.cjs'));
