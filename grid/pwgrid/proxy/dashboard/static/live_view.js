// Shows the pages of one session as they are now. Asks for each frame, so that a slow connection shows fewer of them.

import { socket } from './api.js';
import { byId, h, keyed, set } from './dom.js';

const dialog = byId('viewer');
const picture = byId('viewer-picture');
const choice = byId('viewer-page');
let feed = null;
let chosen = ''; // by the user; '' is the newest page

const SERVICE_RESTART = 1012; // another proxy serves the page from now on
const RETRY_MS = 250;

export function view(session) {
  dialog.close();
  byId('viewer-title').textContent = `Session ${session.id}${session.name ? ` (${session.name})` : ''}`;
  say('connecting …');
  picture.hidden = true;
  choice.hidden = true;
  chosen = '';
  look(session.id, false);
  dialog.showModal();
}

// `isTold`: whether something was heard of the session before.
function look(session, isTold) {
  const here = feed = socket(`v1/live/${session}`);
  here.binaryType = 'blob';
  here.onopen = () => {
    if (chosen)
      here.send(JSON.stringify({ page: chosen }));
  };
  here.onmessage = event => {
    if (here !== feed)
      return;
    isTold = true;
    if (typeof event.data === 'string')
      tell(JSON.parse(event.data));
    else
      show(event.data, here);
  };
  here.onclose = ({ code }) => {
    if (here !== feed)
      return;
    if (code === SERVICE_RESTART)
      setTimeout(() => { if (here === feed) look(session, isTold); }, RETRY_MS);
    else if (isTold)
      say('The connection is over.');
    else
      say('There is nothing to see: the session is over, LIVE_VIEW=false forbids it, or its worker cannot show it.');
  };
}

function tell({ pages, page, why, ended, full }) {
  if (ended || full) {
    feed = null; // the end of its connection, which follows, is no error
    return say(ended ? 'The session is over.' : `${full} look at sessions of this browser already: nobody else may, until one of them closes.`);
  }
  choice.hidden = pages.length < 2;
  keyed(choice, pages.map(each => [each.id, each]), id => h('option', { value: id }),
    (option, each) => set(option, { text: each.url }));
  choice.value = page;
  const shown = pages.find(each => each.id === page);
  picture.alt = shown ? `The page at ${shown.url}` : '';
  picture.hidden ||= !shown;
  say(why || (shown ? shown.url : 'The session has no page.'));
}

function say(text) {
  byId('viewer-state').textContent = text;
}

function show(frame, from) {
  const url = URL.createObjectURL(frame);
  picture.onload = picture.onerror = () => {
    URL.revokeObjectURL(url);
    if (from.readyState === WebSocket.OPEN)
      from.send('{"ack":true}');
  };
  picture.src = url;
  picture.hidden = false;
}

choice.addEventListener('change', () => {
  chosen = choice.value;
  if (feed?.readyState === WebSocket.OPEN)
    feed.send(JSON.stringify({ page: chosen }));
});
byId('viewer-close').addEventListener('click', () => dialog.close());
dialog.addEventListener('close', () => {
  feed?.close();
  feed = null;
  picture.removeAttribute('src');
});
