// Reads as of a revision, from replicas that lag or catch up, and from leaders that are deposed.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Reads } from "../reads.js";
import { encodeRecord } from "../record.js";

const lock = "lock.x", queue = "wait.x.*", place = "wait.x.A";
const message = (h, data = "") => ({ headers: { code: h.code ?? 0, last: (k) => String(h[k] ?? "") }, data });
const record = (key, rev, more = {}) => {
  const position = { "Nats-Stream": "KV_b", "Nats-Subject": "$KV.b." + key, "Nats-Sequence": rev };
  const headers = { ...position, "Nats-Time-Stamp": "2026-01-01T00:00:00Z", "Nats-TTL": "1s", ...more };
  return message(headers, encodeRecord({ v: 1, s: key === lock ? 1 : 2, id: "A", l: 1 }));
};
const none = message({ code: 404 });
const end = (upTo) => message({ code: 204, "Nats-Num-Pending": 0, "Nats-UpTo-Sequence": upTo });
const led = (last_seq, ...keys) => ({
  config: { name: "KV_b", num_replicas: 3 }, cluster: { name: "c", leader_since: "then" }, ts: "2026-01-01T01:00:00Z",
  state: { last_seq, subjects: Object.fromEntries(keys.map((k) => ["$KV.b." + k, 1])) }, total: keys.length,
});
const leaderless = (info) => ({ ...info, cluster: { name: "c" } });
const kept = (key, seq) => ({ message: { subject: "$KV.b." + key, seq, time: "2026-01-01T00:00:00Z" } });
const missing = { error: { err_code: 10037 } };

/** The reads of a client whose requests get these answers, one after the other. The last of each goes on. */
function reads(answers) {
  const asked = [];
  const next = (what) => {
    asked.push(what);
    const all = answers[what] ?? [];
    assert.ok(all.length, "nobody answers " + what);
    return all.length > 1 ? all.shift() : all[0];
  };
  const nc = {
    isClosed: () => false,
    request: async (subject) => {
      if (subject.startsWith("$JS.API.DIRECT")) return next("direct");
      const answer = next(subject.startsWith("$JS.API.STREAM.INFO") ? "info" : "leader");
      return { json: () => answer };
    },
    requestMany: async () => next("many"),
  };
  return Object.assign(new Reads(), { nc, stream: "KV_b", subjects: "$KV.b.", highest: 0, alone: false, asked });
}

const asked = async (r, N) => (await r.list(lock, queue, N), r.asked);

test("a replica that has the revision is enough", async () => {
  assert.equal((await reads({ direct: [record(lock, 7)] }).read(lock, 7)).rev, 7);
  const gone = await reads({ direct: [record(lock, 8, { "KV-Operation": "DEL" })] }).read(lock, 7);
  assert.ok(gone.gone && gone.rev === 8);
});

test("an older record is read again, from the leader", async () => {
  const r = reads({ direct: [record(lock, 5)], info: [led(6, lock), led(7, lock)], leader: [missing, kept(lock, 7)] });
  assert.equal((await r.read(lock, 7)).rev, 7);
  assert.deepEqual(r.asked, ["direct", "info", "info", "leader", "info", "leader"]); // a 404 from there proves nothing
});

test("only a leader that has the revision proves that there is no record (M40, M41)", async () => {
  assert.equal(await reads({ direct: [none], info: [leaderless(led(9)), led(6), led(7)] }).read(lock, 7), null);
  await assert.rejects(reads({ direct: [none], info: [leaderless(led(9))] }).read(lock, 7));
  await assert.rejects(reads({ direct: [none], info: [led(6)] }).read(lock, 7));
});

test("a list of an older state is read again, and an empty one key by key", async () => {
  const later = await reads({ many: [[end(6)], [record(place, 7), end(7)]] }).list(lock, queue, 7);
  assert.equal(later.places.length, 1);
  const r = reads({ many: [[none]], info: [led(7, place)] });
  r.read = async (key) => (key === lock ? null : { key, rev: 6, rec: { s: 2 } });
  assert.equal((await r.list(lock, queue, 7)).places.length, 1);
  assert.deepEqual((await reads({ many: [[none]] }).list(lock, queue)).places, []); // of any state
});

test("a key that is named is not left out (M42)", async () => {
  const answers = () => ({ many: [[message({ code: 413 })]], direct: [none], info: [led(7), led(7, place)] });
  await assert.rejects(reads(answers()).list(lock, queue, 7));
  const found = reads({ ...answers(), direct: [none, none, record(place, 6)] });
  assert.equal((await found.list(lock, queue, 7)).places.length, 1);
  assert.deepEqual((await reads({ ...answers(), info: [led(7), led(7, place), led(8)] }).list(lock, queue, 7)).places, []);
});

test("an older tombstone is read again, from the leader", async () => {
  const tombstone = record(place, 5, { "KV-Operation": "DEL" });
  const answers = () => ({ many: [[message({ code: 413 })]], direct: [record(lock, 7), tombstone], info: [led(7, place)] });
  assert.ok((await asked(reads({ ...answers(), leader: [kept(place, 6)] }), 7)).includes("leader"));
  assert.ok(!(await asked(reads(answers()), 5)).includes("leader"));
});

test("the leader names what a replica that catches up lacks (M73)", async () => {
  const answers = () => ({ many: [[record(lock, 7), end(7)]], info: [led(7, place)], direct: [record(place, 5)] });
  assert.equal((await reads(answers()).list(lock, queue, 7)).places.length, 0);
  assert.equal((await reads(answers()).list(lock, queue, 7, true)).places.length, 1);
});

test("a leader's clock says what is overdue (M55)", async () => {
  const m = { key: lock, rev: 7, time: Date.parse("2026-01-01T00:00:00Z"), ttl: 1, rec: {} };
  const ahead = async (info) => {
    const r = reads({ info: [info] });
    await r.info();
    return r.overdue(m);
  };
  assert.equal(await ahead(led(7)), true);
  assert.equal(await ahead(leaderless(led(7))), false);
  assert.equal(await ahead({ ...led(7), ts: "2026-01-01T00:00:01.300Z" }), false);
});
