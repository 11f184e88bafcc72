// The last hour as curves, drawn by uPlot (a file beside this one).

import { byId, h } from './dom.js';
import { age, mib } from './format.js';

const HEIGHT = 130;
const PERIOD_S = 10; // of a sample
const HOUR_S = 3600;
const SHORTEST_S = 300;

// `of` picks a value from a sample, whose fields are in dashboard/feed.py
const CURVES = [
  { title: 'Live sessions', of: sample => sample[1], text: value => String(value) },
  { title: 'Connects a minute', of: sample => sample[2] * 60 / PERIOD_S, text: value => value.toFixed(0) },
  { title: 'Longest wait for a slot', of: sample => sample[5], text: age, tick: value => `${value} s` },
  { title: 'Memory of all workers', of: sample => sample[6], text: mib, tick: value => value >= 1024 ? `${value / 1024} G` : `${value} M` },
];

const parent = byId('curves');
const drawn = [];

export function showCurves(state) {
  if (!drawn.length) {
    CURVES.forEach(make);
    new ResizeObserver(() => drawn.forEach(fit)).observe(parent);
  }
  const theme = colours();
  if (theme.key !== parent.dataset.theme) {
    parent.dataset.theme = theme.key;
    drawn.forEach(each => { each.plot?.destroy(); each.plot = null; });
  }
  const now = state.now();
  const span = Math.min(HOUR_S, Math.max(SHORTEST_S, now - (state.samples[0]?.[0] ?? now))); // a young grid has no hour yet
  for (const each of drawn) {
    const data = [state.samples.map(sample => sample[0]), state.samples.map(each.curve.of)];
    each.plot ??= plot(each, theme);
    each.plot.setData(data, false);
    each.plot.setScale('x', { min: now - span, max: now });
    const known = data[1].filter(value => value !== null);
    const words = known.length
      ? `now ${each.curve.text(known.at(-1))}, at most ${each.curve.text(Math.max(...known))}` : 'no sample yet';
    each.words.textContent = words;
    each.box.setAttribute('aria-label', `${each.curve.title} in the last hour: ${words}`);
  }
}

function make(curve) {
  const words = h('p', { class: 'muted' });
  const box = h('div', { class: 'plot', role: 'img' });
  parent.append(h('div', { class: 'curve' }, h('h3', { text: curve.title }), words, box));
  drawn.push({ curve, words, box, plot: null });
}

function plot({ curve, box }, theme) {
  const axis = { stroke: theme.muted, grid: { stroke: theme.line, width: 1 }, ticks: { show: false }, font: '11px system-ui' };
  return new uPlot({
    width: Math.max(100, box.clientWidth), height: HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, sync: { key: 'hour' } },
    scales: { x: { time: true, auto: false }, y: { range: (_, low, high) => [0, Math.max(1, high ?? 1) * 1.1] } },
    axes: [
      { ...axis, space: 60, values: '{HH}:{mm}' },
      { ...axis, size: 48, values: (_, values) => values.map(curve.tick ?? String) },
    ],
    series: [{}, { stroke: theme.accent, fill: theme.fill, width: 1.5, points: { show: false }, spanGaps: false }],
  }, [[], []], box);
}

function fit({ box, plot: made }) {
  if (made && Math.abs(made.width - box.clientWidth) > 1)
    made.setSize({ width: Math.max(100, box.clientWidth), height: HEIGHT });
}

// A canvas does not know the page's variables.
function colours() {
  const probe = h('i');
  document.body.append(probe);
  const read = name => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = { muted: read('--muted'), line: read('--line'), accent: read('--accent'), fill: read('--fill') };
  probe.remove();
  return { ...found, key: Object.values(found).join() };
}
