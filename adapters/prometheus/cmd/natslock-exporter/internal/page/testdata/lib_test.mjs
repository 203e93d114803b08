import assert from "node:assert/strict";
import { brief, clock, follow, href, merge, messages, ordered, sums, whole } from "./lib.mjs";

for (const [ms, want] of [[0, "0ms"], [999, "999ms"], [1500, "1.5s"], [42_000, "42s"], [184_000, "3m04s"], [7_380_000, "2h03m"], [273_600_000, "3d04h"], [-5, "0ms"]]) assert.equal(brief(ms), want);
for (const [ms, want] of [[-1, "0s"], [9999, "9s"], [60_000, "1m00s"]]) assert.equal(whole(ms), want);
const noon = Date.UTC(2026, 10, 27, 12, 0, 0, 5);
assert.equal(clock(noon, noon + 1000), "12:00:00.005");
assert.equal(clock(noon, noon + 86_400_000, false), "2026-11-27 12:00:00");

// A name travels as it is, and a key as the server has escaped it.
assert.equal(href({ kind: "mutex", name: "a&b=<c>/?#%" }), "lock?kind=mutex&name=a%26b%3D%3Cc%3E%2F%3F%23%25");
assert.equal(href({ kind: "rw", name: '"\\xff"', key: "%FF" }), "lock?kind=rw&name=%FF");

// Updates: all, rows, due and gone.
const rows = new Map();
merge(rows, { all: true, rows: [{ id: 1, name: "b", kind: "mutex", state: "exclusive", holder: "Web on vm", since: 50, queue: 2, wait: 90 }, { id: 2, name: "a", kind: "rw", state: "free", queue: 2, wait: 80 }, { id: 3, name: "c", kind: "mutex", state: "broken", alarm: true, holder: "x", since: 40 }] });
merge(rows, { due: [[1, 77], [9, 5]], gone: [8] });
assert.equal(rows.get(1).expires, 77);
assert.equal(rows.size, 3);
const order = (filter, sort, reverse) => ordered(rows, filter, sort, reverse).map((r) => r.name).join("");
assert.equal(order("", "queue"), "abc", "of equal queues the longest wait is first");
assert.equal(order("", "queue", true), "cab");
assert.equal(order("", "name"), "abc");
assert.equal(order("", "since"), "cba", "the longest hold first, and what is not held last");
assert.equal(order("", "state"), "cba", "what needs a look is first");
assert.equal(order("", "holder"), "bca", "nobody is last");
assert.equal(order("MUTEX web", "name"), "b", "each word somewhere");
assert.equal(order("nothing", "name"), "");
assert.equal(sums(rows, 60_080), "3 locks · 2 held · 4 waiting · longest wait 1m00s · 1 needing attention");
merge(rows, { gone: [1] });
merge(rows, { all: true, rows: [] });
assert.equal(sums(rows, 0), "0 locks · 0 held · 0 waiting");

// Messages come in parts.
assert.deepEqual(messages('data: {"now":1}\n\ndata: {"now":2}\n\ndata: {"no'), [[{ now: 1 }, { now: 2 }], 'data: {"no']);
assert.deepEqual(messages(": a comment\n\n"), [[], ""]);

// 10,000 rows are ordered in no time.
merge(rows, { all: true, rows: Array.from({ length: 10_000 }, (_, i) => ({ id: i, name: `n.${(i * 7919) % 10_000}`, kind: "mutex", state: "exclusive", queue: i % 3 })) });
const sorted = ordered(rows, "n.", "queue");
assert.equal(sorted.length, 10_000);
assert.equal(sorted[0].queue, 2);

const seen = [];

// A stream that comes in any parts, that ends with a reason, and that is refused.
const parts = ['data: {"now":1}\n', '\n', 'data: {"no', 'w":2', '}\n\ndata: {"now":3}\n\n', 'data: {"bye":"the exporter was stopped"}\n\n'];
const stream = () => {
  const left = [...parts];
  return new ReadableStream({
    async pull(c) {
      // Nothing follows the first message until it was seen.
      while (left.length === parts.length - 2 && !seen.length) await new Promise((done) => setTimeout(done, 1));
      if (left.length) c.enqueue(new TextEncoder().encode(left.shift()));
      else c.close();
    },
  }, { highWaterMark: 0 });
};
const answers = [() => new Response(stream()), () => new Response("too many browsers\n", { status: 503 }), () => Promise.reject(new TypeError("fetch failed"))];
globalThis.document = { hidden: false, addEventListener() {} };
globalThis.fetch = async () => answers.shift()();
setTimeout(() => assert.fail(`after 20 s: ${seen}`), 20_000);
await new Promise((done) => {
  const note = (what) => seen.push(what) === 6 && done();
  follow("live", { message: (m) => note(m.now), lost: note });
});
assert.deepEqual(seen, [1, 2, 3, "The exporter was stopped", "Too many browsers", "The exporter does not respond"]);
process.exit(0); // it would follow for ever
