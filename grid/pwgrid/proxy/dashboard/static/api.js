// Sends the page's requests to the grid, with the token that the user gave. The token is kept for this tab alone.

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

// Relative to the page: a reverse proxy may serve the grid under a path of its own.
function address(path) {
  return new URL(path, location.href);
}

export function socket(path) {
  const url = address(path);
  url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
  if (token())
    url.searchParams.set('token', token());
  return new WebSocket(url);
}

// Returns { ok, status, body }. A refusal is no exception: its sentence is `body.error`.
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
