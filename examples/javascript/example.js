// Takes a lock, works, and releases it. Run it twice at a time: NATS_URL=localhost:4222 node example.js
import { connect } from "@nats-io/transport-node";
import { Bucket } from "./bucket.js";
import { lock } from "./mutex.js";

const nc = await connect({ servers: process.env.NATS_URL ?? "localhost:4222", maxReconnectAttempts: -1 });
const bucket = await Bucket.open(nc, { create: true, warn: console.error });
const stop = new AbortController();
process.once("SIGTERM", () => stop.abort());
process.once("SIGINT", () => stop.abort());

const lease = await lock(bucket, "orders.42", { ttl: 15000, owner: "example.js", signal: stop.signal });
if (lease) {
  lease.onEnd = (why) => why !== "released" && stop.abort();
  console.log("holds orders.42, token", lease.token);
  for (let step = 1; step <= 10 && lease.valid && !stop.signal.aborted; step++) {
    console.log("step", step, "- may work for", Math.round(lease.remaining), "ms");
    await new Promise((r) => setTimeout(r, 200));
  }
  console.log(await lease.release());
}
bucket.close();
await nc.drain();
