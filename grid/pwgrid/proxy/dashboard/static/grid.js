// The head of the page, the figures, pools with their workers as a picture, the line, and the hosts where several are one grid.

import { byId, h, keyed, set, since } from './dom.js';
import { age, mib, plural } from './format.js';

const MOST_SLOTS_DRAWN = 60;
const NO_LIMIT = 1e8; // a lifetime that nobody reaches
const NEAR = 0.9; // the share of a limit

export function showGrid(state, act) {
  const { grid, hosts = {}, pools, workers, queue } = state.tables;
  showHead(grid);
  showHosts(hosts, grid.host);
  showFigures(grid, pools, workers, queue);
  const hasVersions = new Set(Object.values(pools).map(pool => pool.playwright)).size > 1;
  const items = Object.entries(pools).map(([name, pool]) => {
    const own = Object.entries(workers).filter(([, worker]) => worker.pool === name);
    own.sort(([a, x], [b, y]) => (x.startedAt ?? Infinity) - (y.startedAt ?? Infinity) || (a < b ? -1 : 1));
    return [name, { pool, own, operator: state.operator, hasVersions, host: grid.host }];
  });
  keyed(byId('pools'), items, name => makePool(name, act), updatePool);
  showQueue(queue);
}

function showHead(grid) {
  byId('version').textContent = grid.version ?? '';
  const word = grid.stopping ? 'stopping' : grid.ready ? 'ready' : 'not ready';
  set(byId('ready'), { text: word, 'data-level': grid.ready ? 'good' : 'bad' });
  const troubles = [grid.reason, ...(grid.problems ?? []), ...(grid.stale ?? []).map(each => `figures may be old: ${each}`)];
  const text = troubles.filter(Boolean).join(' · ');
  set(byId('trouble'), { text, hidden: !text });
  document.title = `${grid.ready ? '' : '⚠ '}pwgrid: ${plural(grid.active ?? 0, 'session')}`;
}

function showFigures(grid, pools, workers, queue) {
  const waiting = Object.values(queue).reduce((sum, line) => sum + line.clients, 0);
  const wanted = Object.values(pools).reduce((sum, pool) => sum + (pool.wanted ?? 0), 0);
  const available = Object.values(pools).reduce((sum, pool) => sum + (pool.available ?? 0), 0);
  const all = Object.values(workers);
  const sizes = all.map(worker => worker.memoryMib).filter(Number.isFinite); // none in a worker's first seconds
  const memory = sizes.length || !all.length ? sizes.reduce((sum, size) => sum + size, 0) : null;
  const outcomes = grid.outcomes ?? {};
  const here = grid.host ? ' on this host' : ''; // what is not counted over all hosts
  const figures = [
    ['Sessions', `${grid.active ?? 0} / ${grid.slots ?? 0}`, 'slots taken'],
    ['Waiting', String(waiting), `longest wait ${age(grid.longestWaitS ?? 0)}${here}`],
    ['Workers', `${available} / ${wanted}`, 'available of wanted'],
    ['Memory', mib(memory), grid.hostAvailableMib === undefined || grid.hostAvailableMib === null
      ? 'of all workers' : `${mib(grid.hostAvailableMib)} free on ${grid.host ? 'this' : 'the'} host`],
    ['Connects', String(grid.connects ?? 0), `${grid.refused ?? 0} refused, ${grid.abandoned ?? 0} gave up${here}`],
    ['Ended', String(outcomes.completed ?? 0), `${outcomes.failed ?? 0} failed, ${outcomes.ended ?? 0} by operators`],
  ];
  keyed(byId('figures'), figures.map(each => [each[0], each]),
    name => h('div', {}, h('dt', { text: name }), h('dd', { class: 'value' }), h('dd', { class: 'muted' })),
    (element, [, value, note]) => {
      set(element.children[1], { text: value });
      set(element.children[2], { text: note });
    });
}

// ------------------------------------------------------------------------------------------------------------- hosts

function showHosts(hosts, own) {
  const rows = Object.entries(hosts).sort(([a], [b]) => (a < b ? -1 : 1));
  byId('hosts-section').hidden = !rows.length;
  byId('curves-title').textContent = own ? `The last hour on ${own}` : 'The last hour';
  byId('events-title').textContent = own ? `Events on ${own}` : 'Events';
  keyed(document.querySelector('#hosts tbody'), rows.map(([name, host]) => [name, { name, host, own }]),
    () => h('tr', {}, h('th', { scope: 'row', 'data-label': 'Host' }), h('td', { 'data-label': 'State' }, h('span', { class: 'badge' })),
      ...['Workers', 'Sessions', 'Waiting', 'Version', 'Problem'].map(label => h('td', { 'data-label': label }))),
    (row, { name, host, own: self }) => {
      const [head, state, ...cells] = row.children;
      set(head, { text: name === self ? `${name} (this one)` : name });
      set(state.firstElementChild, { text: host.state, 'data-level': host.state === 'serving' ? 'good' : 'warn' });
      const texts = [host.workers, `${host.busy} of ${plural(host.slots, 'slot')}`, host.waiting, host.version, host.problem ?? ''];
      texts.forEach((text, index) => set(cells[index], { text: String(text) }));
    });
}

// ------------------------------------------------------------------------------------------------------------- pools

function makePool(name, act) {
  const host = h('select', { 'aria-label': `Host of ${name}`, hidden: true });
  const path = (what, of) => `v1/pools/${encodeURIComponent(name)}/${what}${of ? `?host=${encodeURIComponent(of)}` : ''}`;
  const wanted = h('input', { type: 'number', min: 0, max: 1000, step: 1, required: true });
  const form = h('form', { class: 'operator' },
    h('label', {}, 'Workers ', wanted), host, h('button', { type: 'submit', text: 'Scale' }),
    h('button', { type: 'button', text: 'Drain all', onclick: () => {
      if (confirm(`Drain every worker of the pool ${name}? Live sessions go on until their drain is over.`))
        act('POST', path('drain'), undefined, `Every worker of ${name} drains.`);
    } }));
  form.addEventListener('submit', event => {
    event.preventDefault();
    const workers = wanted.valueAsNumber;
    element.isTyped = false;
    const where = host.value ? ` on ${host.value}` : '';
    act('POST', path('scale', host.value), { workers }, `${name} wants ${plural(workers, 'worker')}${where} now.`);
    wanted.blur();
  });
  // What somebody has typed stays until it is sent, or is the pool's number again.
  wanted.addEventListener('input', () => { element.isTyped = wanted.value !== String(wantedNow(element)); });
  host.addEventListener('change', () => { if (!element.isTyped) wanted.value = wantedNow(element); });
  const element = h('article', { class: 'pool', 'aria-label': `pool ${name}` },
    h('div', { class: 'pool-head' }, h('h3', { text: name }), h('p', { class: 'muted words' }), form),
    h('p', { class: 'reason', hidden: true }), h('div', { class: 'workers' }));
  return Object.assign(element, { name, act, wanted, form, host });
}

function updatePool(element, { pool, own, operator, hasVersions, host }) {
  const slots = own.filter(([, worker]) => worker.status === 'available').reduce((sum, [, worker]) => sum + worker.slots, 0);
  const active = own.reduce((sum, [, worker]) => sum + worker.active, 0);
  const more = [['starting', pool.starting], ['spare', pool.spare], ['draining', pool.draining]]
    .filter(([, count]) => count).map(([word, count]) => `, ${count} ${word}`).join('');
  const isolation = (pool.isolation ?? 'context') === 'context' ? '' : `isolation ${pool.isolation}`;
  const version = hasVersions && pool.playwright ? `Playwright ${pool.playwright}` : '';
  const kind = [pool.browserType === element.name ? '' : pool.browserType, version, pool.onDemand ? 'on demand' : '', isolation]
      .filter(Boolean).join(', ');
  const hosts = Object.entries(pool.hosts ?? {}).sort(([a], [b]) => (b === host) - (a === host) || (a < b ? -1 : 1));
  const where = hosts.map(([name, each]) => `${name}: ${each.available} of ${each.wanted}`).join(', ');
  const cut = pool.drainTimeouts ? `, ${plural(pool.drainTimeouts, 'drain')} cut sessions` : '';
  set(element.querySelector('.words'), {
    text: `${kind && kind + ': '}${pool.available ?? 0} of ${plural(pool.wanted ?? 0, 'worker')} available${more}; `
      + `${active} of ${plural(slots, 'slot')} taken${cut}${where && ` (${where})`}`,
  });
  set(element.querySelector('.reason'), { text: pool.reason ?? '', hidden: !pool.reason });
  element.form.hidden = !operator || Boolean(pool.onDemand);  // it has the workers that its clients need
  // One host is scaled at a time: this one, if it has the pool and no other one is chosen.
  keyed(element.host, hosts.map(([name]) => [name, name]), name => h('option', { value: name, text: name }), () => {});
  element.host.hidden = hosts.length < 2;
  if (!element.isTyped && document.activeElement !== element.wanted)
    element.wanted.value = wantedNow(element);
  const most = Math.max(1, ...own.map(([, worker]) => worker.memoryMib ?? 0));
  keyed(element.querySelector('.workers'), own.map(([id, worker]) => [id, { worker, pool, most, operator }]),
    id => makeWorker(id, element.act), updateWorker);
}

// How many workers the pool wants: on the host that is chosen, where several have it.
function wantedNow({ shown: { pool }, host }) {
  return (pool.hosts?.[host.value] ?? (host.options.length ? {} : pool)).wanted ?? 0;
}

function makeWorker(id, act) {
  return h('section', { class: 'worker', 'aria-label': `worker ${id}` },
    h('div', { class: 'rods' },
      h('div', { class: 'rod', role: 'meter', 'aria-label': 'sessions of its life', 'aria-valuemin': 0 }, h('i')),
      h('div', { class: 'rod memory', role: 'meter', 'aria-label': 'memory in MiB', 'aria-valuemin': 0 }, h('i'))),
    h('div', { class: 'body' },
      h('h4', {}, h('code', { text: id }), ' ', h('span', { class: 'badge' })),
      h('div', { class: 'slots', role: 'img' }),
      h('p', { class: 'muted host', hidden: true }),
      h('p', { class: 'muted life' }),
      h('p', { class: 'muted' }, h('span', { class: 'size' }), ', ', h('span', { class: 'age' }), ' old'),
      h('p', { class: 'reason', hidden: true }),
      h('button', { type: 'button', class: 'operator', text: 'Drain', 'aria-label': `Drain worker ${id}`,
        onclick: () => act('POST', `v1/workers/${id}/drain`, undefined, `Worker ${id} drains.`) })));
}

function updateWorker(element, { worker, pool, most, operator }) {
  const badge = element.querySelector('.badge');
  element.dataset.status = worker.status;
  set(badge, { text: worker.status, 'data-level': { available: 'good', draining: 'warn' }[worker.status] ?? 'plain' });
  const isLimited = pool.lifetimeOfWorker > 0 && pool.lifetimeOfWorker < NO_LIMIT;
  const [life, memory] = element.querySelectorAll('.rod');
  rod(life, worker.lifetime, isLimited ? pool.lifetimeOfWorker : 0, null, `${worker.lifetime} of ${pool.lifetimeOfWorker} sessions`);
  const limit = pool.memoryLimitMib || pool.memoryHardLimitMib;
  const used = worker.memoryMib ?? 0;
  const size = limit ? `${used} of ${limit} MiB` : `${used} MiB without a limit; the largest worker of the pool has ${most}`;
  rod(memory, used, limit || most, memoryLevel(used, pool), Number.isFinite(worker.memoryMib) ? size : 'not measured yet');
  const sessions = isLimited ? `${worker.lifetime} of ${pool.lifetimeOfWorker} sessions` : plural(worker.lifetime, 'session') + ' so far';
  set(element.querySelector('.life'), { text: sessions + (worker.launches ? `, ${plural(worker.launches, 'own browser')}` : '') });
  set(element.querySelector('.size'), { text: limit ? `${mib(worker.memoryMib)} of ${limit}` : mib(worker.memoryMib) });
  since(element.querySelector('.age'), worker.startedAt);
  set(element.querySelector('.host'), { text: worker.host ? `on ${worker.host}` : '', hidden: !worker.host });
  drawSlots(element.querySelector('.slots'), worker);
  // Until it is replaced, or has drained, it may run with another version than its pool.
  const version = worker.playwright && pool.playwright && worker.playwright !== pool.playwright && `Playwright ${worker.playwright}`;
  const reason = [version, worker.reason, worker.suspect, worker.drainUntil && `sessions have until ${new Date(worker.drainUntil * 1000).toLocaleTimeString()}`];
  const text = reason.filter(Boolean).join('; ');
  set(element.querySelector('.reason'), { text, hidden: !text });
  const button = element.querySelector('button');
  button.hidden = !operator;
  button.disabled = worker.status === 'draining';
}

// Near its limit a worker is recycled, and nobody has to do anything; near the hard one its sessions are about to be cut.
function memoryLevel(used, { memoryLimitMib: limit, memoryHardLimitMib: hardLimit }) {
  if (hardLimit && used >= NEAR * hardLimit)
    return 'bad';
  if (limit && used >= NEAR * limit)
    return 'warn';
  return limit || hardLimit ? null : 'unlimited';
}

// A bar as high as the share of `value` in `whole`; none where that is 0.
function rod(element, value, whole, level, text) {
  const share = whole ? Math.min(1, value / whole) : 0;
  element.hidden = !whole;
  element.firstElementChild.style.height = `${Math.round(share * 100)}%`;
  set(element, { 'aria-valuenow': Math.min(value, whole), 'aria-valuemax': whole || 1, 'aria-valuetext': text, title: text,
    'data-level': level });
}

function drawSlots(element, worker) {
  const open = worker.status === 'available';
  const label = `${worker.active} of ${plural(worker.slots, 'slot')} taken`;
  set(element, { 'aria-label': label, title: label });
  const count = Math.min(MOST_SLOTS_DRAWN, Math.max(worker.slots, worker.active));
  const busy = worker.slots > MOST_SLOTS_DRAWN ? Math.ceil(worker.active / worker.slots * count) : worker.active;
  while (element.childElementCount > count)
    element.lastElementChild.remove();
  while (element.childElementCount < count)
    element.append(h('i', { class: 'slot' }));
  [...element.children].forEach((slot, index) => {
    slot.className = index < busy ? 'slot busy' : open ? 'slot' : 'slot off';
  });
}

// ------------------------------------------------------------------------------------------------------------- queue

function showQueue(queue) {
  const lines = Object.entries(queue).sort(([, a], [, b]) => b.clients - a.clients);
  const most = Math.max(1, ...lines.map(([, line]) => line.clients));
  byId('nobody').hidden = lines.length > 0;
  keyed(byId('queue'), lines.map(([key, line]) => [key, { line, most }]),
    () => h('li', {}, h('span', { class: 'who' }), h('span', { class: 'bar' }, h('i')), h('b')),
    (element, { line, most: longest }) => {
      const run = line.run ? `run ${line.run}` : 'no run';
      const who = line.host ? `at ${line.host}` : run; // of other hosts' lines is only known how long they are
      set(element.children[0], { text: [line.pool, who, line.token && `token ${line.token}`].filter(Boolean).join(', ') });
      element.children[1].firstElementChild.style.width = `${line.clients / longest * 100}%`;
      set(element.children[2], { text: plural(line.clients, 'client') });
    });
}
