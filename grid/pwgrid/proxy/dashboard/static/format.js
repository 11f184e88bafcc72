// Figures as people read them.

export function age(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10)
    return `${s.toFixed(1)} s`;
  if (s < 120)
    return `${Math.round(s)} s`;
  if (s < 7200)
    return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

export function mib(value) {
  if (value === null || value === undefined)
    return '–';
  return value < 10240 ? `${value} MiB` : `${(value / 1024).toFixed(1)} GiB`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
}

export function plural(count, one) {
  return `${count} ${one}${count === 1 ? '' : 's'}`;
}
