// The bucket: its verification, writes and their answers, reads, notifications.
import { EventEmitter } from "node:events";
import { randomBytes } from "node:crypto";
import { errors, headers } from "@nats-io/transport-node";
import { GONE, WAITING, decodeRecord, encodeRecord, newId, now, seconds } from "./record.js";

const DAY = 86400e9; // in nanoseconds

/** What a client refuses and what it warns of, in the configuration of a stream (M3 to M17, and M2). */
export function judge(info, name) {
  const c = info.config, bad = [], odd = [];
  const must = (ok, what) => ok || bad.push(what);
  const should = (ok, what) => ok || odd.push(what);
  must(c.max_msgs_per_subject === 1, "max_msgs_per_subject");
  must(c.allow_msg_ttl, "allow_msg_ttl");
  must(!c.subject_delete_marker_ttl, "subject_delete_marker_ttl");
  must(c.subjects?.length === 1 && c.subjects[0] === `$KV.${name}.>`, "subjects");
  must(c.retention === "limits", "retention");
  must(c.discard === "new" || !(c.max_bytes > 0 || c.max_msgs > 0), "discard");
  must(!c.max_age || c.max_age >= 366 * DAY, "max_age");
  must(!(c.max_msg_size > 0 && c.max_msg_size < 20480), "max_msg_size");
  must(!c.persist_mode || c.persist_mode === "default", "persist_mode");
  must(!c.mirror && !c.sources?.length && !c.subject_transform, "mirror, sources, subject_transform");
  must(!c.discard_new_per_subject && !c.no_ack && !c.sealed && !c.allow_msg_counter, "discard_new_per_subject, no_ack, sealed, allow_msg_counter");
  must(c.storage === "file" || c.num_replicas > 1, "storage");
  must(c.metadata?.["natslock.protocol"] === "2", "metadata natslock.protocol");
  must(Number(c.metadata?.["_nats.level"]) >= 2, "JetStream API level below 2 (nats-server 2.12)");
  must(c.num_replicas === 1 && !info.cluster?.replicas?.length && !info.alternates?.some((a) => a.name !== c.name),
    "replicas or a mirror: this locker has no level 5");
  should(c.republish?.src === `$KV.${name}.>` && /^natslock\.[^.]+\.[^.]+\.>$/.test(c.republish.dest), "republish");
  should(c.allow_direct, "allow_direct");
  should(!c.allow_rollup_hdrs, "allow_rollup_hdrs");
  should(!c.allow_msg_schedules, "allow_msg_schedules");
  should(c.deny_delete && c.deny_purge, "deny_delete, deny_purge");
  should(c.first_seq >= 3e13 || info.state?.last_seq >= 3e13, "first_seq");
  return { bad, odd };
}

/** An error whose code says why a request has no answer. */
function unanswered(err, subject) {
  const e = err.cause ?? err;
  const code = e instanceof errors.TimeoutError ? "silent" : e instanceof errors.NoRespondersError ? "none"
    : e instanceof errors.PermissionViolationError ? "denied" : /max_payload/.test(e.message) ? "large" : "down";
  return Object.assign(new Error(`${subject}: ${e.message}`), { code });
}

export class Bucket extends EventEmitter {
  client = newId(); // the id of the client, the same in all its records
  highest = 0; // the highest revision that was acknowledged (M53)
  unfit = ""; // why nothing is granted (M21)
  #up = true;
  #watches = new Set();
  #multi = true; // multi-key reads are permitted
  #ahead = 0; // the server's clock before ours, as far as known

  /** Opens the bucket, and creates it only if asked to. */
  static async open(nc, { bucket = "natslock", create = false, warn = () => {} } = {}) {
    if (!/^[A-Za-z0-9_-]+$/.test(bucket)) throw new RangeError("a bucket's name has letters, digits, - and _");
    const b = new Bucket().setMaxListeners(0); // one and more for each lease and waiter
    Object.assign(b, { nc, name: bucket, stream: "KV_" + bucket, subjects: `$KV.${bucket}.`, warn });
    b.#follow();
    let info = await b.info();
    if (info.error?.err_code === 10059 && create) info = await b.#create();
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
      if (s.type === "disconnect") this.#up = false;
      if (s.type !== "reconnect") continue;
      this.#up = true;
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

  /** Judges the creation time before the settings (M19, M20), and then those (M18). */
  #verify(info) {
    if (this.created && info.created !== this.created) this.#gone("the bucket was created anew");
    this.created = info.created;
    const { bad, odd } = judge(info, this.name);
    if (this.mirrored) bad.push("a mirror answers: this locker has no level 5");
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

  async #create() {
    const api = await this.#json("INFO", "");
    if (!(api.api?.level >= 2)) throw new Error("the server is below JetStream API level 2 (nats-server 2.12)"); // M17
    const id = randomBytes(8).toString("hex");
    const answer = await this.#json("STREAM.CREATE." + this.stream, {
      name: this.stream, description: "distributed locks", subjects: [this.subjects + ">"], retention: "limits",
      max_consumers: -1, max_msgs: -1, max_bytes: -1, discard: "new", max_age: 0, max_msgs_per_subject: 1, max_msg_size: -1,
      storage: "file", num_replicas: 1, deny_delete: true, deny_purge: true, allow_direct: true,
      mirror_direct: false, allow_msg_ttl: true, first_seq: (Date.now() - Date.UTC(2016, 0, 1)) * 100,
      republish: { src: this.subjects + ">", dest: `natslock.${this.name}.${id}.>` },
      metadata: { "natslock.id": id, "natslock.protocol": "2" }, allow_atomic: true,
    }, 5000);
    if (answer.error && answer.error.err_code !== 10058) throw new Error("cannot create the bucket: " + answer.error.description);
    return this.info();
  }

  // --- Requests ---

  /** One answer within ms, or an error with code "down", "silent", "none", "denied" or "large". */
  async #ask(subject, body, timeout = 2000, hdrs) {
    const { nc } = this;
    try { // while it is not connected the transport would keep the message, and send it later (M38)
      if (!this.#up || nc.isClosed() || nc.protocol?.connected === false) throw new Error("not connected");
      return await nc.request(subject, body, { timeout, headers: hdrs });
    } catch (err) {
      throw unanswered(err, subject);
    }
  }

  async #json(request, body, ms) {
    return (await this.#ask("$JS.API." + request, body && JSON.stringify(body), ms)).json();
  }

  /** The stream info. It tells the clock of the server, and the keys of a filter in #names. */
  async info(body = "") {
    const info = await this.#json("STREAM.INFO." + this.stream, body);
    if (info.ts) this.#ahead = Date.parse(info.ts) - now();
    return info;
  }

  // --- Writes ---

  /** Sends one conditional write (M36: always with an expectation and a TTL, M37: never with a message id).
   * `answer` settles whenever an answer comes, for 5 minutes; soon() waits for it for a second. */
  write(key, expect, ttl, rec, tombstone = false) {
    const h = headers();
    h.set("Nats-Expected-Last-Subject-Sequence", String(expect));
    if (tombstone) h.set("KV-Operation", "DEL");
    h.set("Nats-TTL", `${tombstone ? 1 : ttl}s`); // M133
    const w = { sent: now(), floor: this.highest, created: this.created };
    w.answer = this.#ask(this.subjects + key, encodeRecord(rec), 300e3, h)
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

  // --- Reads. The bucket is alone, so every state contains what was acknowledged ---

  /** A message with its headers: the last value of each counts. */
  #record(h, data) {
    if (h("Nats-Stream") !== this.stream) {
      if (!this.mirrored) this.#again();
      this.mirrored = true;
      throw new Error("an answer of a mirror");
    }
    return {
      key: h("Nats-Subject").slice(this.subjects.length), rev: Number(h("Nats-Sequence")),
      time: Date.parse(h("Nats-Time-Stamp")), ttl: seconds(h("Nats-TTL")), rec: decodeRecord(data),
      gone: ["DEL", "PURGE"].includes(h("KV-Operation")) || !!h("Nats-Marker-Reason"),
    };
  }
  #message = (msg) => this.#record((k) => msg.headers?.last(k), msg.data);

  /** One key by a direct get, or from the leader where those are off: a record, or null. */
  async read(key) {
    const msg = await this.#ask(`$JS.API.DIRECT.GET.${this.stream}.${this.subjects}${key}`, "").catch((err) => {
      if (err.code !== "none") throw err;
    });
    if (msg?.headers?.code === 404) return null;
    if (msg && !msg.headers?.code) return this.#message(msg);
    const { error, message: m } = await this.#json("STREAM.MSG.GET." + this.stream, { last_by_subj: this.subjects + key });
    if (error?.err_code === 10037) return null;
    if (error) throw new Error(error.description);
    const h = new Map();
    const lines = Buffer.from(m.hdrs ?? "", "base64").toString();
    for (const [, k, v] of lines.matchAll(/^([^:\r\n]+):[ \t]*(.*?)[ \t]*\r?$/gm)) h.set(k, v);
    h.set("Nats-Stream", this.stream).set("Nats-Subject", m.subject);
    h.set("Nats-Sequence", m.seq).set("Nats-Time-Stamp", m.time);
    return this.#record((k) => h.get(k), Buffer.from(m.data ?? "", "base64"));
  }

  /** The lock and its queue in one state (M65), or key by key, the lock first (M138). */
  async list(lock, queue) {
    const all = (this.#multi && (await this.#many([queue, lock]))) || (await this.#byKey(lock, queue));
    return {
      lock: all.find((m) => m.key === lock) ?? null,
      places: all.filter((m) => m.key !== lock && !m.gone && m.rec?.s === WAITING).sort((x, y) => ticket(x) - ticket(y)),
    };
  }

  /** A multi-key read: its records, or null where another way has to be taken. */
  async #many(keys) {
    const found = [];
    const multi_last = keys.map((k) => this.subjects + k);
    const body = JSON.stringify({ multi_last, batch: 1024, max_bytes: 8388608 });
    try {
      const answers = await this.nc.requestMany("$JS.API.DIRECT.GET." + this.stream, body, { maxWait: 2000 });
      for await (const msg of answers) {
        const code = msg.headers?.code;
        if (code === 204) return msg.headers.last("Nats-Num-Pending") === "0" ? found : null;
        if (code === 404 && !found.length) return []; // behind records it makes the answer a part
        if (code) return null;
        found.push(this.#message(msg));
      }
    } catch (err) {
      if (unanswered(err).code === "denied") this.#multi = false;
      return null;
    }
    throw new Error("no answer to a list");
  }

  async #names(filter) {
    const names = [];
    for (;;) {
      const a = await this.info({ subjects_filter: this.subjects + filter, offset: names.length });
      const page = Object.keys(a.state?.subjects ?? {});
      names.push(...page.map((s) => s.slice(this.subjects.length)));
      if (!page.length || names.length >= (a.total ?? 0)) return names;
    }
  }

  async #byKey(lock, queue) {
    const found = [await this.read(lock)];
    for (const key of await this.#names(queue)) {
      let m = null;
      for (let i = 0; !(m = await this.read(key)) && (await this.#names(key)).length; i++)
        if (i === 8) throw new Error("a key that is named is not found");
      found.push(m);
    }
    return found.filter(Boolean);
  }

  /** When a record ends by the clock of the servers: 300 ms after its TTL (M131), and a millisecond for what
   * its time was truncated by. A record without a TTL and an unreadable one are never overdue. */
  endOf = (m) => (m.ttl && m.rec ? m.time + m.ttl * 1000 + 301 : Infinity);

  /** How long that is from now, by a guess of the server's clock, which only says when to ask. */
  untilEnd = (m) => this.endOf(m) - now() - this.#ahead;

  /** Whether a record that was read (M54) is overdue by a clock that a server tells (M55). */
  async overdue(m) {
    if (this.untilEnd(m) > 0) return false;
    return Date.parse((await this.info()).ts) >= this.endOf(m);
  }

  // --- Notifications: hints (M43) ---

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
          m = err ? null : this.#message(msg);
        } catch {}
        if (m) w.hint(m);
      },
    });
  }
}

/** The ticket of a place: the revision of its first write, which renewals carry (M52). */
export const ticket = (m) => m.rec.t || m.rev;
