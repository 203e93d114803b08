// docs/protocol/vectors.json against the encoder and the decoder. NATSLOCK_VECTORS names another copy.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { decodeRecord, encodeName, encodeRecord, lockKey, margin, placeKey, token, ttlSeconds, validity } from "../record.js";

const path = process.env.NATSLOCK_VECTORS ?? new URL("../../../docs/protocol/vectors.json", import.meta.url);
const vectors = JSON.parse(readFileSync(path));
const hex = (b) => Buffer.from(b).toString("hex");

test("names", () => {
  for (const { bytes, encoded } of vectors.names) assert.equal(encodeName(Buffer.from(bytes, "hex")), encoded);
  assert.throws(() => encodeName(""), RangeError);
  assert.throws(() => encodeName(" ".repeat(171)), RangeError);
});

test("keys of mutexes", () => {
  const mine = vectors.keys.filter((k) => k.prefix === "lock." || k.prefix === "wait.");
  assert.ok(mine.length >= 2);
  for (const { key, name, id } of mine) assert.equal(id ? placeKey(name, id) : lockKey(name), key);
});

test("tokens", () => {
  for (const { revision, grant, token: t } of vectors.tokens) assert.equal(token(revision, grant), t);
});

test("leases", () => {
  for (const { ttl, margin_ms, valid_ms } of vectors.leases) {
    assert.equal(margin(ttl), margin_ms);
    assert.equal(validity(ttl), valid_ms);
  }
  assert.equal(ttlSeconds(1001), 2);
  for (const no of [0, -1, 999, NaN, 86400001]) assert.throws(() => ttlSeconds(no), RangeError);
});

test("records", () => {
  for (const [name, { fields, hex: want }] of Object.entries(vectors.records)) {
    assert.equal(hex(encodeRecord(fields)), want, name);
    assert.deepEqual(decodeRecord(Buffer.from(want, "hex")), fields, name);
  }
});

test("unreadable records", () => {
  for (const [name, bytes] of Object.entries(vectors.unreadable)) assert.equal(decodeRecord(Buffer.from(bytes, "hex")), null, name);
});

test("readable records", () => {
  for (const [name, { fields, hex, any = [] }] of Object.entries(vectors.readable)) {
    const read = decodeRecord(Buffer.from(hex, "hex"));
    for (const field of any) delete read?.[field];
    assert.deepEqual(read, fields, name);
  }
});

test("what the library reads, too", () => {
  const held = { v: 1, s: 1, id: "A", l: 15 };
  for (const [name, hex, more] of [
    ["an unknown field __proto__", "85a17601a17301a26964a141a16c0fa95f5f70726f746f5f5f01", {}],
    ["metadata with the name __proto__", "85a17601a17301a26964a141a16c0fa16481a95f5f70726f746f5f5fa161", { d: { "__proto__?": "a" } }],
  ])
    assert.deepEqual(decodeRecord(Buffer.from(hex, "hex")), { ...held, ...more }, name);
});
