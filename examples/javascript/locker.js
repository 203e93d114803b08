#!/usr/bin/env node
// Speaks the lines of docs/protocol/conform.md on standard input and output, a JSON object each:
//   node locker.js
//   lockconform -- node locker.js
import { createInterface } from "node:readline";
import { connect } from "@nats-io/transport-node";
import { Bucket } from "./bucket.js";
import { lock } from "./mutex.js";
import { margin, ttlSeconds } from "./record.js";

const say = (line) => process.stdout.write(JSON.stringify(line) + "\n");
const leases = new Map(); // by the name of the lock
let nc, bucket, ttl = 15000;

const state = (lease) => ({ held: !!lease?.valid, left: Math.floor(lease?.remaining ?? 0), token: lease?.token });

async function take(r, wait) {
  if (leases.get(r.name)?.valid) return { result: "refused", why: "this program holds it" };
  const lease = await lock(bucket, r.name, { ttl: r.ttl || ttl, wait, owner: "locker.js" });
  if (!lease) return { result: "refused", why: "another client holds it, or waits for it" };
  leases.set(r.name, lease);
  const lost = (why) => why === "released" || say({ event: "lost", name: r.name, why });
  if (lease.ended) lost(lease.ended);
  lease.onEnd = lost;
  return { result: "ok", ...state(lease) };
}

const verbs = {
  async open(r) {
    ttl = r.ttl || ttl;
    const s = ttlSeconds(ttl);
    nc = await connect({ servers: r.url.split(","), maxReconnectAttempts: -1, reconnectTimeWait: 100 });
    bucket = await Bucket.open(nc, { bucket: r.bucket || "natslock", create: r.create, warn: console.error });
    return { result: "ok", margin: margin(s) };
  },
  lock: (r) => take(r, r.wait || Infinity),
  try: (r) => take(r, 0),
  async unlock(r) {
    const lease = leases.get(r.name);
    if (!lease) return { result: "error", why: "not taken" };
    leases.delete(r.name);
    const why = await lease.release();
    return { result: why === "released" ? "ok" : why === "unknown" ? "error" : "lost", why };
  },
  async extend(r) {
    const lease = leases.get(r.name);
    if (!lease) return { result: "error", why: "not taken" };
    const ok = await lease.extend(r.ttl ? ttlSeconds(r.ttl) : undefined);
    return { result: ok ? "ok" : "lost", why: lease.ended, ...state(lease) };
  },
  status: (r) => ({ result: "ok", ...state(leases.get(r.name)) }),
  async close() {
    bucket?.close();
    await Promise.race([nc?.close(), new Promise((r) => setTimeout(r, 500))]);
    return { result: "ok" };
  },
};

const lines = createInterface({ input: process.stdin });
lines.on("line", async (line) => {
  let r = {};
  try {
    r = JSON.parse(line);
    if (!Object.hasOwn(verbs, r.do)) throw new Error(`unknown request ${r.do}`);
    say({ id: r.id, ...(await verbs[r.do](r)) });
  } catch (err) {
    say({ id: r.id, result: "error", why: err.message });
  }
  if (r.do === "close") process.exit(0);
});
lines.on("close", () => setTimeout(() => process.exit(0), 500).unref());
