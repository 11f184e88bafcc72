// The launcher as it is, for a browser whose messages may have 1 MiB: what is longer costs a test gigabytes otherwise.
'use strict';

const path = require('node:path');

const folder = path.join(__dirname, '../../grid/pwgrid/worker/browser');
require(path.join(folder, 'units/browser_messages.cjs')).BrowserMessages.mostBytes = 1024 * 1024;
require(path.join(folder, 'launcher.cjs'));
