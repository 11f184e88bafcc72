// Starts the processes that Playwright starts so that they may use no more of the host than they need: which files the
// browser may use is decided in pwgrid/worker/browser/confined_paths.py.
'use strict';

const childProcess = require('node:child_process');
const path = require('node:path');

const { withNetworkThread } = require('./network_thread.cjs');

const USER_DATA_DIR = '--user-data-dir=';

// `beforeBrowser` are the words before a browser's command that confine it, none where it is not to be confined, and
// `browserEnvironment` is what its environment has in place of Node's. `unitOf()` returns the unit whose browser is being
// launched: it may have a directory for its files, words before its command, and a profile in place of an empty one that Playwright has
// made. A Chromium of one session alone has its network service in its browser process.
function confineProcesses({ browserType, beforeBrowser, browserEnvironment, browserDirectory, sessionsDirectory }, unitOf) {
  const { spawn } = childProcess;
  childProcess.spawn = (command, args = [], options = {}, ...rest) => {
    const given = profileOf(args);
    if (given) {
      const unit = unitOf();
      const profile = unit?.profile?.directory ?? given;
      if (profile !== given)
        args = args.map(each => each === USER_DATA_DIR + given ? USER_DATA_DIR + profile : each);
      if (browserType === 'chromium' && unit && !unit.isShared)
        args = withNetworkThread(args);
      const directory = unit?.directory ?? browserDirectory;
      const before = unit?.before ?? beforeBrowser;
      const confined = before.length ? [...before, '--own', profile, directory, '--', command] : [command];
      // A session of the kernel's for each browser, which Playwright makes, too: so it gets no more of the processors than another one,
      // however many threads it has, where the kernel groups by sessions (autogroup, docs/isolation.md).
      const detached = true;
      const env = { ...(options.env ?? process.env), ...inDirectory(browserEnvironment, browserDirectory, directory) };
      return spawn(confined[0], [...confined.slice(1), ...args], { ...options, env, detached }, ...rest);
    }
    // A process's command line can be read by all, also by pages: it shall not tell the directory of a session.
    const output = String(args.at(-1) ?? '');
    if (path.dirname(path.dirname(output)) === sessionsDirectory)
      return spawn(command, [...args.slice(0, -1), `./${path.basename(output)}`], { ...options, cwd: path.dirname(output) }, ...rest);
    return spawn(command, args, options, ...rest);
  };
}

// The same variables, of a browser that has its files in `directory`.
function inDirectory(environment, browserDirectory, directory) {
  return Object.fromEntries(Object.entries(environment).map(([name, value]) => [name, value === browserDirectory ? directory : value]));
}

// The profile of a browser that is to be started with these arguments; undefined for any other process.
function profileOf(args) {
  const ofChromium = args.find(each => String(each).startsWith(USER_DATA_DIR));
  const ofFirefox = args.findIndex(each => each === '-profile' || each === '--profile');
  return ofChromium?.slice(USER_DATA_DIR.length) ?? (ofFirefox < 0 ? undefined : args[ofFirefox + 1]);
}

module.exports = { confineProcesses };
