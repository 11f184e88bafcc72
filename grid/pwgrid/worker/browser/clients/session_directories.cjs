// Directories for the files of sessions. The browser may list those that the worker has made, by their inodes, and open what is
// in others (pwgrid/worker/browser/confined_paths.py). So a directory is used again, by another name: nobody can guess one, and a page
// with a file: URL sees the files of no other session.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { randomBytes } = require('node:crypto');

const UNFINISHED = '.crdownload'; // how the names of downloads end that are under way

class SessionDirectories {
  // `parent` has those that the worker has made
  constructor(parent) {
    this.parent = parent;
    this.free = fs.readdirSync(parent).map(name => path.join(parent, name));
    this.made = new Set(this.free);
  }

  // Returns the path of one that nobody else has. If all of the worker's are in use, it names one that is to be made.
  take() {
    return this.free.pop() ?? this.unknown();
  }

  // Removes what is in the directory, if it is there. With `kept`, its files are moved there: a path that is not there yet.
  async giveBack(directory, kept = '') {
    if (!fs.existsSync(directory))
      return;
    const renamed = this.unknown();
    fs.renameSync(directory, renamed); // first: what comes late, a download for one, finds no such directory
    try {
      if (kept)
        keepFiles(renamed, kept);
    } finally {
      await this.empty(directory, renamed);
    }
  }

  async empty(directory, renamed) {
    if (!this.made.delete(directory))
      return fs.promises.rm(renamed, { recursive: true, force: true });
    for (const name of fs.readdirSync(renamed))
      await fs.promises.rm(path.join(renamed, name), { recursive: true, force: true });
    this.made.add(renamed);
    this.free.push(renamed);
  }

  unknown() {
    return path.join(this.parent, randomBytes(16).toString('hex'));
  }
}

// Moves the plain files of a directory. Fails where they cannot be moved, as with the first version of Landlock; then none is kept.
function keepFiles(directory, kept) {
  const files = fs.readdirSync(directory, { withFileTypes: true }).filter(each => each.isFile() && !each.name.endsWith(UNFINISHED));
  if (!files.length)
    return;
  const unfinished = `${kept}.new`;
  fs.mkdirSync(unfinished, { mode: 0o700 });
  try {
    for (const { name } of files)
      fs.renameSync(path.join(directory, name), path.join(unfinished, name));
    fs.renameSync(unfinished, kept);
  } catch (error) {
    fs.rmSync(unfinished, { recursive: true, force: true });
    throw error;
  }
}

module.exports = { SessionDirectories };
