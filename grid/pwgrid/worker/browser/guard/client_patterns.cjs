// Patterns that a client gives: of routes, of WebSocket routes, of HAR files, of cookies. Playwright evaluates them here, for each request of a
// page, and an evaluation may take for ever, while no other client is served.
//
// - V8 itself changes to an engine without backtracking where a pattern takes too many steps (launch.py gives Node the flags), if that
//   engine can do the pattern: no flags but g, m, s, y, no lookahead, no reference to a group.
// - Any other pattern runs with a time limit, unless it is so simple that it needs none.
// - The time that all patterns of a client take is limited, too: a client that takes more loses its session.
'use strict';

const vm = require('node:vm');

const LONGEST_MS = 200; // of one evaluation
const BURST_MS = 500; // of a client's evaluations in a row
const SHARE = 0.1; // of the time that has passed, which a client's evaluations may take on and on
const MOST_CHARACTERS = 5_000; // compiling cannot be interrupted
const MOST_PROPERTIES = 20; // \p{RGI_Emoji} takes 15 ms to compile
const MOST_STEPS = 1e7; // of an evaluation without a time limit
const MOST_TEXT = 64 * 1024; // so long that the engine without backtracking takes some milliseconds at most

const job = new vm.Script('globalThis[Symbol.for("pwgrid.evaluation")]()');
const kEvaluation = Symbol.for('pwgrid.evaluation');

// Returns what `evaluate` does. Throws when it takes longer than LONGEST_MS.
function withTimeLimit(evaluate) {
  globalThis[kEvaluation] = evaluate;
  try {
    return job.runInThisContext({ timeout: LONGEST_MS });
  } finally {
    delete globalThis[kEvaluation];
  }
}

// Whether V8's engine without backtracking can do this pattern. It says so for the flag `l`, which no client may use.
function isLinear(source, flags) {
  try {
    new NativeRegExp(source, flags + 'l');
    return true;
  } catch {
    return false;
  }
}

// An upper bound for the ways that a backtracking engine may take through a text: each `?`, `|` and `{` doubles them, each `*` and `+`
// is anywhere in the text. A repeated group has no such bound.
function mostSteps(source, length) {
  if (/\)[*+{]/.test(source))
    return Infinity;
  const anywhere = source.match(/[*+]|,\}/g)?.length ?? 0;
  const twofold = source.match(/[?|{]/g)?.length ?? 0;
  return (length + 1) ** (anywhere + 1) * 2 ** twofold;
}

// What the patterns of one client may take.
class PatternTime {
  constructor(now) {
    this.ms = 0;
    this.since = now;
  }

  // Returns whether this is still within the limit.
  takes(ms, now) {
    this.ms = Math.max(0, this.ms - (now - this.since) * SHARE) + ms;
    this.since = now;
    return this.ms <= BURST_MS;
  }
}

const NativeRegExp = RegExp;
const NativeURLPattern = globalThis.URLPattern;

function checkSize(text, what) {
  const properties = text.match(/\\p/gi)?.length ?? 0;
  if (text.length > MOST_CHARACTERS || properties > MOST_PROPERTIES) {
    throw new Error(`this ${what} is too large for the grid: no pattern has more than ${MOST_CHARACTERS} characters, `
      + `nor more than ${MOST_PROPERTIES} of \\p{…}`);
  }
}

// Bounds each regular expression, URL pattern and glob that Playwright makes from a text from now on. `whose()` returns the client for
// which this process works now, if it is known; `onTooMuch(client)` ends its session.
function boundPatterns(whose, onTooMuch) {
  const times = new WeakMap(); // client -> PatternTime

  // Where the client has lost its session no pattern matches any more.
  function bounded(client, evaluate, needsLimit, noMatch) {
    if (client?.session.kind)
      return noMatch;
    const began = performance.now();
    try {
      return needsLimit() ? withTimeLimit(evaluate) : evaluate();
    } catch (error) {
      if (error.code !== 'ERR_SCRIPT_EXECUTION_TIMEOUT' || !client)
        throw error;
      onTooMuch(client);
      return noMatch;
    } finally {
      const now = performance.now();
      if (client && !timeOf(client, began).takes(now - began, now))
        onTooMuch(client);
    }
  }

  function timeOf(client, now) {
    if (!times.has(client))
      times.set(client, new PatternTime(now));
    return times.get(client);
  }

  class BoundedRegExp extends NativeRegExp {
    #client = whose();
    #isLinear = null; // or whether it is, once that matters

    exec(text) {
      const read = String(text);
      return bounded(this.#client ?? whose(), () => super.exec(read), () => this.#needsLimit(read), null);
    }

    #needsLimit(text) {
      if (mostSteps(this.source, text.length) <= MOST_STEPS)
        return false;
      this.#isLinear ??= isLinear(this.source, this.flags);
      return !this.#isLinear || text.length > MOST_TEXT;
    }
  }

  const make = (source, flags) => {
    if (source instanceof NativeRegExp)
      return new BoundedRegExp(source, flags);
    checkSize(String(source), 'regular expression or glob');
    if (String(flags ?? '').includes('l'))
      throw new SyntaxError(`Invalid flags supplied to RegExp constructor '${flags}'`);
    return new BoundedRegExp(source, flags);
  };
  globalThis.RegExp = new Proxy(NativeRegExp, {
    construct: (_target, [source, flags]) => make(source, flags),
    apply: (_target, _this, [source, flags]) => make(source, flags),
  });

  if (!NativeURLPattern) // Node before 23.8
    return;
  globalThis.URLPattern = class URLPattern extends NativeURLPattern {
    #client = whose();

    constructor(input, ...rest) {
      checkSize(Object.values(input).join(''), 'URL pattern');
      super(input, ...rest);
    }

    test(...input) {
      return bounded(this.#client ?? whose(), () => super.test(...input), () => true, false);
    }
  };
}

module.exports = { boundPatterns, isLinear, mostSteps, PatternTime, withTimeLimit };
