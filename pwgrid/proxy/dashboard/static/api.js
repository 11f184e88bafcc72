// What the page asks of the grid, with the token that its user gave. It is kept for this tab alone.

const KEY = 'pwgrid-token';

const given = new URL(location.href);
if (given.searchParams.has('token')) { // a link with it: not to be left in the address bar and the history
  sessionStorage.setItem(KEY, given.searchParams.get('token'));
  given.searchParams.delete('token');
  history.replaceState(null, '', given);
}

export function token() {
  return sessionStorage.getItem(KEY) ?? '';
}

export function setToken(value) {
  sessionStorage.setItem(KEY, value);
}

// Relative to the page, which may be behind a path of somebody else's server.
export function address(path) {
  return new URL(path, location.href);
}

export function socket(path) {
  const url = address(path);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  if (token())
    url.searchParams.set('token', token());
  return new WebSocket(url);
}

// { ok, status, body }: a refusal is no exception, its sentence is `body.error`.
export async function ask(method, path, body) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  if (body !== undefined)
    headers['Content-Type'] = 'application/json';
  try {
    const answer = await fetch(address(path), { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    return { ok: answer.ok, status: answer.status, body: await answer.json().catch(() => ({})) };
  } catch {
    return { ok: false, status: 0, body: { error: 'the grid does not answer' } };
  }
}
