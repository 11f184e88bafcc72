// Who has the other end of a TCP connection within this host, as the kernel tells it in /proc: which user, and whether it is a
// process of one tree. Looks at the descriptors of that tree alone.
'use strict';

const fs = require('node:fs');
const os = require('node:os');
const { setImmediate } = require('node:timers/promises');

const TRIES = 2; // connections come and go while the kernel writes its table, and may be closed before their process is looked at
const ESTABLISHED = '01';
const UID_AND_INODE = /^(?:\s*\S+){3}\s+(\d+)\s+\d+\s+(\d+)/; // of a line, behind the connection's state

const tcp = tableAt('/proc/net/tcp');
const tcp6 = tableAt('/proc/net/tcp6');

// Looks who has the other end of `socket`, of IPv4. Returns { uid, isInTree }, the latter true for the process `root` and those
// below it, with `orMe` for this process, too; null if nobody has it any more.
async function ownerOf({ remoteAddress, remotePort, localAddress, localPort }, root, orMe = false) {
  const theirs = [remoteAddress, remotePort, localAddress, localPort];
  let owner = null;
  if (remoteAddress === undefined) // it has closed it already
    return owner;
  for (let tries = 0; tries < TRIES; tries++) {
    const found = ownerIn(await tcp(), 4, theirs) ?? ownerIn(await tcp6(), 6, theirs); // a socket of IPv6 may speak IPv4
    owner = found && { uid: found.uid, isInTree: false };
    if (found && found.uid !== process.geteuid())
      break;
    const name = found && `socket:[${found.inode}]`;
    if (found && (orMe && holds(process.pid, name) || await holdsInTree(root, name)))
      return { ...owner, isInTree: true };
  }
  return owner;
}

// Returns a function that reads a table of the kernel. All who ask while it is being read share the next reading.
function tableAt(path) {
  let last = Promise.resolve();
  let next = null;
  return () => {
    next ??= last = last.then(() => {
      next = null;
      return fs.promises.readFile(path, 'latin1').catch(() => '');
    });
    return next;
  };
}

// `table` has the text of /proc/net/tcp, or tcp6. Returns the owner of an established connection, { uid, inode }, or null.
function ownerIn(table, version, [localAddress, localPort, remoteAddress, remotePort]) {
  const connection = ` ${inTable(localAddress, localPort, version)} ${inTable(remoteAddress, remotePort, version)} ${ESTABLISHED} `;
  const at = table.indexOf(connection);
  const found = at < 0 ? null : UID_AND_INODE.exec(table.slice(at + connection.length, table.indexOf('\n', at)));
  return found && { uid: Number(found[1]), inode: Number(found[2]) };
}

// An IPv4 address and a port as the kernel writes them: 127.0.0.1 is 0100007F on a machine that has the low byte first.
function inTable(address, port, version) {
  const word = bytes => Buffer.from(os.endianness() === 'LE' ? [...bytes].reverse() : bytes).toString('hex').toUpperCase();
  const mapped = version === 6 ? word([0, 0, 0, 0]).repeat(2) + word([0, 0, 255, 255]) : '';
  return `${mapped}${word(address.split('.').map(Number))}:${port.toString(16).toUpperCase().padStart(4, '0')}`;
}

// The browser and its network process come first: they have the connections, and their children are many.
async function holdsInTree(root, socket) {
  for (let level = [root]; level.length; level = level.flatMap(childrenOf)) {
    for (const pid of level) {
      if (holds(pid, socket))
        return true;
      await setImmediate(); // others may go on
    }
  }
  return false;
}

// These read without a wait: a promise for each of hundreds of such short reads costs more than the reads.
function holds(pid, socket) {
  return listed(`/proc/${pid}/fd`).some(each => {
    try {
      return fs.readlinkSync(`/proc/${pid}/fd/${each}`) === socket;
    } catch {
      return false; // closed meanwhile
    }
  });
}

// Each thread has children of its own.
function childrenOf(pid) {
  return listed(`/proc/${pid}/task`).flatMap(each => {
    try {
      return fs.readFileSync(`/proc/${pid}/task/${each}/children`, 'latin1').split(' ').filter(Boolean).map(Number);
    } catch {
      return []; // ended meanwhile
    }
  });
}

function listed(directory) {
  try {
    return fs.readdirSync(directory);
  } catch {
    return []; // the process has ended meanwhile
  }
}

module.exports = { ownerIn, ownerOf };
