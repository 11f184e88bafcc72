// Keeps what the grid sends over a WebSocket, which connects again by itself, and has it shown.

import { ask, setToken, socket, token } from './api.js';
import { showCurves } from './curves.js';
import { byId } from './dom.js';
import { showEvents } from './events.js';
import { age } from './format.js';
import { showGrid } from './grid.js';
import { onFilter, showSessions } from './sessions.js';

const EVENTS_KEPT = 300;
const SAMPLES_KEPT = 360;
const RETRY_MS = [500, 1000, 2000, 5000];

const state = {
  operator: false,
  tables: { grid: {}, hosts: {}, pools: {}, workers: {}, sessions: {}, queue: {} },
  events: [],
  samples: [],
  clockAhead: 0, // seconds by which the grid's clock is ahead of the browser's
  now() { return Date.now() / 1000 + this.clockAhead; },
};
const changed = new Set();
let attempts = 0;
let drawing = false;

// ------------------------------------------------------------------------------------------------------------- feed

async function connect() {
  // A browser does not tell a page why its WebSocket was refused.
  const { status, body } = await ask('GET', 'v1/status');
  if (status === 401 || (token() && (status === 403 || status === 429))) // 403: a client's token
    return askForToken(body.error);
  if (status === 403)
    return say(body.error);
  const feed = socket('v1/live');
  let why = 'connection lost';
  feed.onmessage = event => {
    const message = JSON.parse(event.data);
    if (message.full) {
      why = `${message.full} pages look at this grid already`;
      return;
    }
    if (message.you) {
      attempts = 0;
      say('live');
    }
    take(message);
  };
  feed.onclose = () => {
    const wait = RETRY_MS[Math.min(attempts++, RETRY_MS.length - 1)];
    say(`${why}, trying again …`);
    setTimeout(connect, wait);
  };
}

function say(text) {
  byId('link').textContent = text;
  document.body.dataset.link = text === 'live' ? 'live' : 'lost';
}

function take(message) {
  if (message.you) {
    state.operator = message.you.operator;
    changed.add('pools').add('sessions');
  }
  if (message.now)
    state.clockAhead = message.now - Date.now() / 1000;
  if (message.all) {
    for (const name of Object.keys(state.tables))
      state.tables[name] = {};
    state.samples = [];
    state.events = [];
    [...Object.keys(state.tables), 'samples', 'events'].forEach(name => changed.add(name));
  }
  for (const [name, table] of Object.entries(message.set ?? {})) {
    const known = state.tables[name] ??= {};
    for (const [key, value] of Object.entries(table)) {
      if (value === null && name !== 'grid')
        delete known[key];
      else
        known[key] = value;
    }
    changed.add(name);
  }
  if (message.events) {
    const last = state.events.at(-1)?.n ?? 0;
    state.events = [...state.events, ...message.events.filter(each => each.n > last)].slice(-EVENTS_KEPT);
    changed.add('events');
  }
  if (message.samples) {
    const last = state.samples.at(-1)?.[0] ?? 0;
    state.samples = [...state.samples, ...message.samples.filter(each => each[0] > last)].slice(-SAMPLES_KEPT);
    changed.add('samples');
  }
  draw();
}

function draw() {
  if (drawing)
    return;
  drawing = true;
  // Not requestAnimationFrame: that waits for ever in a tab that nobody sees.
  setTimeout(() => {
    drawing = false;
    const what = new Set(changed);
    changed.clear();
    if (['grid', 'hosts', 'pools', 'workers', 'queue'].some(name => what.has(name)))
      showGrid(state, act);
    if (what.has('sessions'))
      showSessions(state, act);
    if (what.has('events'))
      showEvents(state);
    if (what.has('samples'))
      showCurves(state);
    grow();
    document.body.dataset.drawn = state.tables.grid.version ?? '';
  }, 16);
}

// Updates ages and times that are left, which change while nothing else does.
function grow() {
  const now = state.now();
  for (const element of document.querySelectorAll('.age')) {
    const text = element.since ? age((element.until ?? now) - element.since) : '';
    if (element.textContent !== text)
      element.textContent = text;
  }
  for (const element of document.querySelectorAll('.left')) {
    const text = element.at ? ` (${age(element.at - now)})` : '';
    if (element.textContent !== text)
      element.textContent = text;
  }
}
setInterval(() => { if (!document.hidden) grow(); }, 1000);

// ---------------------------------------------------------------------------------------------------------- actions

async function act(method, path, body, done) {
  const answer = await ask(method, path, body);
  if (answer.status === 401)
    return askForToken(answer.body.error);
  notice(answer.ok ? done : `Refused: ${answer.body.error ?? answer.status}`);
}

let noticeTimer;
function notice(text) {
  const element = byId('notice');
  element.textContent = text;
  element.hidden = false;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { element.hidden = true; }, 8000);
}

function askForToken(why) {
  say('waiting for a token');
  byId('login-why').textContent = why ?? '';
  if (!byId('login').open)
    byId('login').showModal();
}

byId('login').addEventListener('submit', event => {
  event.preventDefault();
  setToken(byId('token').value);
  byId('token').value = '';
  byId('login').close();
  connect();
});
byId('login').addEventListener('cancel', event => event.preventDefault()); // without a token the page shows nothing

document.addEventListener('keydown', event => {
  if (event.key === '/' && !event.target.closest('input, select, textarea, dialog')) {
    event.preventDefault();
    byId('words').focus();
  }
});
onFilter(() => { changed.add('sessions'); draw(); });
document.addEventListener('themechange', () => { changed.add('samples'); draw(); });
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { changed.add('samples'); draw(); });

connect();
