// What is written, without a connection: names and keys, records, tokens, times.
// M numbers are the musts of docs/protocol.
import { randomBytes } from "node:crypto";
import { Decoder, encode } from "@msgpack/msgpack";

// --- Keys -------------------------------------------------------------------

const plain = /[A-Za-z0-9_\/-]/;

/** The encoding of a name, as "Keys" says. A name is a string or bytes. */
export function encodeName(name) {
  const b = Buffer.from(name);
  let out = "";
  b.forEach((c, i) => {
    const ch = String.fromCharCode(c);
    const inner = ch === "." && i > 0 && i < b.length - 1 && b[i - 1] !== c && b[i + 1] !== c;
    out += plain.test(ch) || inner ? ch : "=" + c.toString(16).toUpperCase().padStart(2, "0");
  });
  if (out === "" || out.length > 512) throw new RangeError("a lock's name has 1 to 512 encoded bytes");
  return out;
}

/** The keys of a mutex (M24: literal, and short enough since a name has at most 512 bytes). */
export const lockKey = (name) => "lock." + encodeName(name);
export const placeKey = (name, id) => "wait." + encodeName(name) + "." + id;

/** A new id: 26 characters of base32, 130 random bits (M26). */
export const newId = () => Array.from(randomBytes(26), (b) => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[b & 31]).join("");

// --- Records ----------------------------------------------------------------

export const HELD = 1, WAITING = 2, BROKEN = 3, GONE = 4, GRANTED = 5, PASSED = 9;

const types = {
  v: "int", s: "int", id: "str", c: "str", a: "int", r: "uint", t: "uint", l: "int", f: "bool", m: "int", q: "int",
  at: "int", w: "int", n: "int", g: "uint", gw: "int", k: "bool", u: "bool", by: "int", y: "purpose", o: "str", h: "str",
  p: "int", ps: "int", d: "map", bb: "str", br: "str", ba: "int",
};
const is = {
  int: Number.isInteger,
  uint: (x) => Number.isInteger(x) && x >= 0 && x < 2 ** 63,
  str: (x) => typeof x === "string",
  purpose: (x) => is.str(x) && x !== "" && Buffer.byteLength(x) <= 16, // another value counts as absent
  bool: (x) => typeof x === "boolean",
  map: (x) => Object.prototype.toString.call(x) === "[object Object]" && !(noString in x),
};
const noString = "\0"; // stands for a key that is none
const text = (x) => (x instanceof Uint8Array ? Buffer.from(x).toString() : x);
const options = {
  maxStrLength: 16384, maxBinLength: 16384, maxArrayLength: 16384, maxMapLength: 16384, maxExtLength: 16384,
  mapKeyConverter: (k) => (k === null ? "" : is.str(text(k)) ? text(k) : noString),
  keyDecoder: { // the package refuses this name, which is one like others
    canBeCached: () => true,
    decode: (b, at, n) => Buffer.from(b.buffer, b.byteOffset + at, n).toString().replace(/^__proto__$/, "__proto__?"),
  },
};

/** A float is no integer, also if it is whole. */
class Reader extends Decoder {
  readF32 = () => (super.readF32(), NaN);
  readF64 = () => (super.readF64(), NaN);
}

/** The bytes of a record: the fields in the order of the table, without the zero ones. */
export function encodeRecord(rec) {
  const out = {};
  for (const k of Object.keys(types)) if (["v", "s", "id", "l"].includes(k) || rec[k]) out[k] = rec[k];
  return encode(out);
}

/** The record in bytes, or null if it is unreadable (M32). Fields come in any order and width (M29), unknown
 * ones are ignored, and no length that is announced is believed. */
export function decodeRecord(bytes) {
  if (bytes.length === 0 || bytes.length > 16384) return null;
  let map;
  try {
    map = new Reader(options).decodeMulti(bytes).next().value; // what comes behind the map does not matter
  } catch {
    return null;
  }
  if (!is.map(map)) return null;
  const rec = { l: 0 };
  for (const [k, type] of Object.entries(types)) {
    const x = type === "str" || type === "purpose" ? text(map[k]) : map[k];
    if (x === undefined || x === null || (type === "purpose" && !is.purpose(x))) continue;
    if (!is[type](x)) return null;
    rec[k] = x;
    if (type !== "map") continue;
    rec[k] = Object.fromEntries(Object.entries(x).map(([name, v]) => [name, v === null ? "" : text(v)]));
    if (!Object.values(rec[k]).every(is.str)) return null;
  }
  const fine = rec.v === 1 && rec.s >= 1 && rec.s <= 9 && rec.id && rec.l >= 0 && rec.l <= 31622400 && !(rec.q > 256 || rec.q < 0);
  return fine ? rec : null;
}

// --- Tokens and time --------------------------------------------------------

/** The fencing token of the first grant at a revision. It stays below 2^53 until 2060. */
export const token = (revision, grant = 0) => revision * 64 + grant;

/** The whole seconds of a TTL in milliseconds: rounded up (M35), and in bounds. */
export function ttlSeconds(ms) {
  const s = Math.ceil(ms / 1000);
  if (!(ms >= 1000) || s > 86400) throw new RangeError("a TTL has 1 s to 24 h");
  return s;
}

/** The seconds of a Nats-TTL header, as clients write it, or 0. */
export const seconds = (text) => Number(/^(\d+)s?$/.exec(text)?.[1] ?? 0);

/** Margin and validity in milliseconds of a TTL in seconds (M45). */
export const margin = (ttl) => Math.max(Math.min(ttl * 100, 1000), ttl);
export const validity = (ttl) => ttl * 1000 - margin(ttl);

// Node's monotonic clock may stand still while the machine is suspended, so a wall clock that has run ahead of it
// by more than half a second moves this one too. A wall clock that is stepped ends leases early, never late.
let [mono, wall, clock] = [performance.now(), Date.now(), 0];
export function now() {
  const [m, w] = [performance.now(), Date.now()];
  clock += w - wall - (m - mono) > 500 ? w - wall : m - mono;
  [mono, wall] = [m, w];
  return clock;
}

export const sleep = (ms) => new Promise((r) => setTimeout(r, Math.max(0, ms)));
