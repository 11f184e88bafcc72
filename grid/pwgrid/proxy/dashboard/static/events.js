// What has happened, the newest first.

import { byId, h, keyed } from './dom.js';
import { clock } from './format.js';

const list = byId('events');

export function showEvents(state) {
  const events = [...state.events].sort((a, b) => b.at - a.at || b.n - a.n);
  keyed(list, events.map(event => [event.n, event]), () => h('li'), (element, event) => {
    element.dataset.level = event.level;
    element.replaceChildren(
      h('time', { text: clock(event.at), datetime: new Date(event.at * 1000).toISOString() }),
      h('span', { class: 'kind', text: event.level === 'info' ? event.kind : `${event.kind} ${event.level}` }),
      h('span', { text: event.text }));
  });
}
