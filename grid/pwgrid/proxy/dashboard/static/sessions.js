// The table of sessions, with a filter that stays where it is while rows come and go.

import { byId, h, keyed, left, set, since } from './dom.js';
import { clock } from './format.js';
import { view } from './live_view.js';

const MOST_SHOWN = 200;
const LIVE = ['pending', 'running'];

const words = byId('words');
const wanted = byId('state');
let mayView = true;
let severalHosts = false;
const body = document.querySelector('#sessions tbody');

export function onFilter(callback) {
  words.addEventListener('input', callback);
  wanted.addEventListener('change', callback);
  byId('filter').addEventListener('submit', event => event.preventDefault());
}

export function showSessions(state, act) {
  mayView = state.tables.grid.liveView ?? false;
  severalHosts = Boolean(state.tables.grid.host);
  const all = Object.values(state.tables.sessions);
  const passing = all.filter(passes).sort((a, b) => isLive(b) - isLive(a) || b.createdAt - a.createdAt);
  const shown = passing.slice(0, MOST_SHOWN);
  keyed(body, shown.map(session => [session.id, session]), id => makeRow(id, act), updateRow);
  document.body.classList.toggle('operator', state.operator);
  const rest = passing.length > shown.length ? `, the first ${shown.length} are shown` : '';
  byId('count').textContent = `${passing.length} of ${all.length}${rest}`;
}

function isLive(session) {
  return LIVE.includes(session.status);
}

// What the table calls its state: a kept session waits for a client to come back.
function stateOf(session) {
  return session.kept ? 'kept' : session.status;
}

// Of a grid of an earlier version no session has an isolation.
function isShared(session) {
  return (session.isolation ?? 'context') === 'context';
}

function protocolOf(session) {
  return (session.protocol ?? 'playwright') === 'playwright' ? '' : session.protocol;
}

// What is said of it beside its pool; '' of one that is like most.
function kindOf(session) {
  const own = isShared(session) ? '' : `own ${session.isolation}`;
  return [own, protocolOf(session), session.profile ? `profile ${session.profile}` : ''].filter(Boolean).join(', ');
}

function passes(session) {
  const state = wanted.value;
  if (state === 'live' ? !isLive(session) : state === 'ended' ? isLive(session) : state && stateOf(session) !== state)
    return false;
  const text = [session.id, session.name, session.run, session.pool, session.workerId, session.host, stateOf(session), session.client,
    session.reason, kindOf(session)].filter(Boolean).join(' ').toLowerCase();
  return words.value.toLowerCase().split(/\s+/).every(word => text.includes(word));
}

function makeRow(id, act) {
  const cell = (label, ...children) => h('td', { 'data-label': label }, ...children);
  return h('tr', {},
    h('th', { scope: 'row', 'data-label': 'Session' }, h('code', { text: id })),
    cell('Name'), cell('Run'), cell('Pool'), cell('Worker', h('code'), h('span', { class: 'muted host' })), cell('State', h('span', { class: 'badge' })),
    cell('Age', h('span', { class: 'age' })), cell('Client'),
    cell('Reason', h('span'), h('span', { class: 'left' })),
    h('td', { class: 'actions' },
      h('button', { type: 'button', class: 'view operator', text: 'View', 'aria-label': `View session ${id}`,
        onclick: event => view(event.target.closest('tr').shown) }), ' ',
      h('button', { type: 'button', class: 'end operator', text: 'End', 'aria-label': `End session ${id}`, onclick: () => {
        if (confirm(`End the session ${id}? Its client is told that an operator ended it.`))
          act('DELETE', `v1/sessions/${id}`, undefined, `Session ${id} is being ended.`);
      } })));
}

function updateRow(row, session) {
  const cells = row.children;
  set(cells[1], { text: session.name ?? '' });
  set(cells[2], { text: session.run ?? '' });
  const kind = kindOf(session);
  set(cells[3], { text: kind ? `${session.pool} (${kind})` : session.pool });
  set(cells[4].firstElementChild, { text: session.workerId });
  set(cells[4].lastElementChild, { text: session.host && severalHosts ? ` on ${session.host}` : '' });
  const state = stateOf(session);
  const level = { running: 'good', kept: 'plain', pending: 'plain', failed: 'bad', expired: 'warn', ended: 'warn' }[state] ?? 'plain';
  set(cells[5].firstElementChild, { text: state, 'data-level': level });
  since(cells[6].firstElementChild, session.startedAt ?? session.createdAt, session.endedAt);
  set(cells[7], { text: session.client });
  const looked = session.viewedAt ? `looked at, last at ${clock(session.viewedAt)}` : '';
  const waits = session.kept ? `waits for a client until ${clock(session.keptUntil)}` : '';
  set(cells[8].firstElementChild, { text: [session.reason, looked, waits].filter(Boolean).join('; ') });
  left(cells[8].lastElementChild, session.kept ? session.keptUntil : null);
  row.querySelector('.end').hidden = !isLive(session);
  row.querySelector('.view').hidden = !isLive(session) || !mayView;
}
