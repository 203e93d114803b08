// The bucket: its verification, writes and their answers, notifications.
import { randomBytes } from "node:crypto";
import { headers } from "@nats-io/transport-node";
import { Reads } from "./reads.js";
import { GONE, encodeRecord, newId, now } from "./record.js";

const DAY = 86400e9; // in nanoseconds

/** What a server means by a setting that nobody has set. */
const off = (v) => v == null || [false, 0, -1, ""].includes(v) || (typeof v === "object" && !Object.keys(v).length);

// Settings that may be as they like.
const FREE = ["name", "description", "placement", "max_msgs", "max_bytes", "max_consumers", "consumer_limits", "duplicate_window",
  "compression", "mirror_direct", "template_owner", "metadata"];

/** What a client refuses (M3, M16, M17) and what it warns of, in the configuration of a stream. */
export function judge(info, name) {
  const c = info.config;
  const must = {
    max_msgs_per_subject: c.max_msgs_per_subject === 1,
    allow_msg_ttl: c.allow_msg_ttl === true,
    subjects: c.subjects?.length === 1 && c.subjects[0] === `$KV.${name}.>`,
    retention: c.retention === "limits",
    discard: c.discard === "new" || (off(c.max_bytes) && off(c.max_msgs)),
    max_age: off(c.max_age) || c.max_age >= 366 * DAY,
    persist_mode: off(c.persist_mode) || c.persist_mode === "default",
    storage: c.storage === "file" || (c.storage === "memory" && c.num_replicas > 1),
    "metadata natslock.protocol": c.metadata?.["natslock.protocol"] === "3",
    "JetStream API level 2 (nats-server 2.12)": Number(c.metadata?.["_nats.level"]) >= 2,
  };
  for (const s of ["subject_delete_marker_ttl", "mirror", "sources", "subject_transform", "discard_new_per_subject", "no_ack",
    "sealed", "allow_msg_counter"]) must[s] = off(c[s]);
  const should = {
    max_msg_size: off(c.max_msg_size) || c.max_msg_size >= 20480,
    republish: c.republish?.src === `$KV.${name}.>` && !c.republish.headers_only && /^natslock\.[^.]+\.[^.]+\.>$/.test(c.republish.dest),
    num_replicas: c.num_replicas > 1 || !info.cluster?.name,
    first_seq: c.first_seq >= 3e13 || info.state?.last_seq >= 3e13,
  };
  for (const s of ["allow_direct", "deny_delete", "deny_purge", "allow_atomic"]) should[s] = c[s] === true;
  // Those that are to be off, and those that a later server names.
  for (const s of Object.keys(c)) if (!FREE.includes(s) && !(s in must) && !(s in should)) should[s] = off(c[s]);
  const wrong = (of) => Object.keys(of).filter((s) => !of[s]);
  return { bad: wrong(must), odd: wrong(should) };
}

export class Bucket extends Reads {
  client = newId(); // the id of the client, the same in all its records
  highest = 0; // the highest revision that was acknowledged (M53)
  unfit = ""; // why nothing is granted (M21)
  #watches = new Set();

  /** Opens the bucket, and creates it only if asked to. */
  static async open(nc, { bucket = "natslock", create = false, replicas = 1, warn = () => {} } = {}) {
    if (!/^[A-Za-z0-9_-]+$/.test(bucket)) throw new RangeError("a bucket's name has letters, digits, - and _");
    const b = new Bucket().setMaxListeners(0); // one and more for each lease and waiter
    Object.assign(b, { nc, name: bucket, stream: "KV_" + bucket, subjects: `$KV.${bucket}.`, warn });
    b.#follow();
    let info = await b.info();
    if (info.error?.err_code === 10059 && create) info = await b.#create(replicas);
    if (info.error) throw new Error(`bucket ${bucket}: ${info.error.description}`);
    b.#verify(info);
    if (b.unfit) throw new Error(`bucket ${bucket} is unfit: ${b.unfit}`);
    b.#keepVerifying();
    return b;
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  // --- Verification ---

  /** Follows the connection: a reconnect asks for a verification (M18), renewals and reads. */
  async #follow() {
    for await (const s of this.nc.status()) {
      if (s.type === "disconnect") this.up = false;
      if (s.type !== "reconnect") continue;
      this.up = true;
      await this.#again();
      this.emit("reconnect");
    }
  }

  #keepVerifying() {
    this.timer = setTimeout(() => this.#again().finally(() => this.closed || this.#keepVerifying()), this.unfit ? 5e3 : 120e3);
    this.timer.unref();
  }

  async #again() {
    const info = await this.info().catch(() => null);
    if (info?.error?.err_code === 10059) this.#gone("the bucket is gone");
    else if (info && !info.error) this.#verify(info);
  }

  /** Judges the creation time before the settings (M19), and then those (M18). */
  #verify(info) {
    if (this.created && info.created !== this.created) this.#gone("the bucket was created anew");
    this.created = info.created;
    const { bad, odd } = judge(info, this.name);
    const config = JSON.stringify(info.config);
    if (odd.length && config !== this.config) this.warn(`bucket ${this.name} should have other settings: ${odd.join("; ")}`);
    if (bad.length && !this.unfit) this.warn(`bucket ${this.name} is unfit: ${bad.join("; ")}`);
    this.config = config;
    this.unfit = bad.join("; ");
    const dest = odd.includes("republish") ? "" : info.config.republish.dest;
    if (dest === this.dest) return;
    this.dest = dest; // notifications come from there alone
    for (const w of this.#watches) (w.sub?.unsubscribe(), this.#subscribe(w));
    this.emit("reconnect");
  }

  #gone(why) {
    this.unfit = why;
    this.emit("gone", why);
  }

  async #create(replicas) {
    const api = await this.json("INFO", "");
    if (!(api.api?.level >= 2)) throw new Error("the server is below JetStream API level 2 (nats-server 2.12)"); // M17
    const id = randomBytes(8).toString("hex");
    const answer = await this.json("STREAM.CREATE." + this.stream, {
      name: this.stream, description: "distributed locks", subjects: [this.subjects + ">"], retention: "limits",
      max_consumers: -1, max_msgs: -1, max_bytes: -1, discard: "new", max_age: 0, max_msgs_per_subject: 1, max_msg_size: -1,
      storage: "file", num_replicas: replicas, deny_delete: true, deny_purge: true, allow_direct: true,
      mirror_direct: false, allow_msg_ttl: true, first_seq: (Date.now() - Date.UTC(2016, 0, 1)) * 100,
      republish: { src: this.subjects + ">", dest: `natslock.${this.name}.${id}.>` },
      metadata: { "natslock.id": id, "natslock.protocol": "3" }, allow_atomic: true,
    }, 5000);
    if (answer.error && answer.error.err_code !== 10058) throw new Error("cannot create the bucket: " + answer.error.description);
    return this.info();
  }

  // --- Writes ---

  /** Sends one conditional write (M36: always with an expectation and a TTL, M37: never with a message id).
   * `answer` settles whenever an answer comes, for 5 minutes; soon() waits for it for a second. */
  write(key, expect, ttl, rec, tombstone = false) {
    const h = headers();
    h.set("Nats-Expected-Last-Subject-Sequence", String(expect));
    if (tombstone) h.set("KV-Operation", "DEL");
    h.set("Nats-TTL", `${tombstone ? 1 : ttl}s`);
    const w = { sent: now(), floor: this.highest, created: this.created };
    w.answer = this.ask(this.subjects + key, encodeRecord(rec), 300e3, h)
      .then((msg) => this.#answer(msg))
      .catch((err) => ({ kind: err.code ?? "error" }));
    w.soon = () => {
      let timer;
      const late = new Promise((ok) => (timer = setTimeout(ok, 1000, { kind: "silent" })));
      return Promise.race([w.answer, late]).finally(() => clearTimeout(timer));
    };
    return w;
  }

  /** The tombstone of a record of a claim (M89: at exactly a revision). */
  erase(key, rev, { id, c, t }, status = GONE) {
    return this.write(key, rev, 1, { v: 1, s: status, id, c, t, l: 0 }, true);
  }

  /** Proves a subscription: no key has this revision. The answer names the last one of the key. */
  async probe(key) {
    return (await this.erase(key, "999999999999999999", { id: "probe" }).soon()).n;
  }

  /** What an answer to a write means (M39). */
  #answer(msg) {
    const { stream, seq, duplicate, error } = msg.json();
    if (!error && stream === this.stream && seq > 0 && !duplicate) {
      this.highest = Math.max(this.highest, seq);
      return { kind: "stored", rev: seq };
    }
    const { err_code: code, description: text } = error ?? {};
    const n = /wrong last sequence: (\d+)/.exec(text);
    if (code === 10071 && n) return { kind: "refused", n: Number(n[1]) };
    if (code === 10164) return { kind: "flight" };
    if (code === 10054) return { kind: "large" };
    if (code === 10077 && /maximum/.test(text)) return { kind: "full" };
    this.#again();
    return { kind: "error" };
  }

  // --- Notifications: hints (M44) ---

  /** Calls hint with each record that is stored under a key. It proves nothing (M44). */
  watch(key, hint) {
    const w = { key, hint };
    this.#watches.add(w);
    this.#subscribe(w);
    return () => (this.#watches.delete(w), w.sub?.unsubscribe());
  }

  #subscribe(w) {
    w.sub = this.dest && this.nc.subscribe(this.dest.slice(0, -1) + w.key, {
      callback: (err, msg) => {
        let m = null;
        try {
          m = err ? null : this.message(msg);
        } catch {}
        if (m) w.hint(m);
      },
    });
  }
}
