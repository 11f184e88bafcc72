// How large a message may be whose handling makes Node compute. The size of a text alone costs little, so what is counted is values, and
// texts that Playwright parses. Decides, changes nothing.
'use strict';

const MOST_VALUES = 300_000; // in a client's message, and in what a script gives it: Playwright checks and copies each
const MOST_VALUES_OF_BROWSER = 1_500_000; // in any other message of the browser
const COUNTED_FROM_BYTES = 256 * 1024; // shorter ones have fewer values
const MOST_SELECTOR = 20_000; // characters
const MOST_SNAPSHOT = 50_000; // characters of the YAML that toMatchAriaSnapshot expects
const MOST_PATTERNS = 1_000; // of one page or context, at once

const QUOTE = 0x22, BACKSLASH = 0x5c, COMMA = 0x2c, BRACKET = 0x5b, BRACE = 0x7b;

// At least as many values as there are in this JSON, of which `at(n)` is a byte or a character.
function countValues(length, at) {
  let values = 1, isText = false;
  for (let n = 0; n < length; n++) {
    const code = at(n);
    if (isText) {
      if (code === BACKSLASH)
        n++;
      else if (code === QUOTE)
        isText = false;
    } else if (code === QUOTE) {
      isText = true;
    } else if (code === COMMA || code === BRACKET || code === BRACE) {
      values++;
    }
  }
  return values;
}

// Returns the sentence of a refusal, or null. `data` is a Buffer.
function tooManyValues(data, most = MOST_VALUES) {
  if (data.length < COUNTED_FROM_BYTES)
    return null;
  const values = countValues(data.length, n => data[n]);
  return values > most ? `a message with ${values} values is too large for the grid, which takes ${most}` : null;
}

// The same for a text of the browser.
function tooManyValuesIn(text, most) {
  const values = countValues(text.length, n => text.charCodeAt(n));
  return values > most ? `an answer of the browser with ${values} values is too large for the grid, which takes ${most}` : null;
}

// Returns the sentence of a refusal of a client's call, or null.
function judgeSize(method, params) {
  const selectors = [params?.selector, params?.locator?.selector, ...listOf(params?.mask).map(each => each?.selector)];
  if (method === 'dragAndDrop')
    selectors.push(params?.source, params?.target);
  const expected = params?.expression === 'to.match.aria' ? params.expectedValue?.value?.s : undefined;
  return tooLong('a selector', MOST_SELECTOR, ...selectors)
    ?? tooLong('an expected ARIA snapshot', MOST_SNAPSHOT, expected)
    ?? (listOf(params?.patterns).length > MOST_PATTERNS ? `more than ${MOST_PATTERNS} patterns is too large for the grid` : null);
}

function tooLong(what, most, ...texts) {
  const longest = Math.max(0, ...texts.map(each => typeof each === 'string' ? each.length : 0));
  return longest > most ? `${what} of ${longest} characters is too large for the grid, which takes ${most}` : null;
}

function listOf(value) {
  return Array.isArray(value) ? value : [];
}

module.exports = { judgeSize, tooManyValues, tooManyValuesIn, COUNTED_FROM_BYTES, MOST_VALUES, MOST_VALUES_OF_BROWSER };
