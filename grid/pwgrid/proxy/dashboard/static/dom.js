// The little that this page needs of a framework. Sets texts only as text, never as HTML: names come from clients.

export const byId = id => document.getElementById(id);

// Makes an element with attributes (`on…` are listeners, `text` its text) and children.
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children);
  return element;
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'text') {
      if (element.textContent !== value)
        element.textContent = value;
    } else if (name.startsWith('on')) {
      element.addEventListener(name.slice(2), value);
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else if (element.getAttribute(name) !== String(value)) {
      element.setAttribute(name, value === true ? '' : value);
    }
  }
}

// Makes the children of `parent` those of `items` ([key, value]), in their order. An element stays that of its key, so that
// focus and selection stay where they are. `make(key)` gives a new element, `update(element, value)` brings one up to date.
export function keyed(parent, items, make, update) {
  const known = parent.known ??= new Map();
  const wanted = new Set(items.map(([key]) => key));
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
  let next = parent.firstElementChild;
  for (const [key, value] of items) {
    let element = known.get(key);
    if (!element) {
      element = make(key);
      known.set(key, element);
    }
    if (element === next)
      next = next.nextElementSibling;
    else
      parent.insertBefore(element, next);
    if (element.shown !== value) {
      element.shown = value;
      update(element, value);
    }
  }
}

// Makes an element show the time since `at`, which app.js updates, or from `at` to `until`.
export function since(element, at, until = null) {
  element.since = at;
  element.until = until;
}

// Makes an element show the time that is left until `at`, which app.js updates; nothing without one.
export function left(element, at) {
  element.at = at;
}
