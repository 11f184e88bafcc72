'use strict';

// Puts `replacement` in the place of a method of this object alone. It gets the original method, bound to `object`, and the arguments.
function override(object, name, replacement) {
  const original = object[name];
  object[name] = (...args) => replacement(original.bind(object), ...args);
}

module.exports = { override };
