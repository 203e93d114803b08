// Requests and reads: one key, or a lock and its queue, as of a revision. Without replicas and mirrors any answer is.
import { EventEmitter } from "node:events";
import { errors } from "@nats-io/transport-node";
import { WAITING, decodeRecord, now, seconds, sleep } from "./record.js";

/** An error whose code says why a request has no answer. */
function unanswered(err, subject) {
  const e = err.cause ?? err;
  const code = e instanceof errors.TimeoutError ? "silent" : e instanceof errors.NoRespondersError ? "none"
    : e instanceof errors.PermissionViolationError ? "denied" : /max_payload/.test(e.message) ? "large" : "down";
  return Object.assign(new Error(`${subject}: ${e.message}`), { code });
}

/** The ticket of a place: the revision of its first write, which renewals carry (M52). */
export const ticket = (m) => m.rec.t || m.rev;

/** Whether one server has no mirror: there each state contains what was acknowledged. */
const isAlone = ({ config: c, cluster, alternates }) =>
  c.num_replicas === 1 && !cluster?.replicas?.length && !alternates?.some((a) => a.name !== c.name);

/** Asks until there is a result, with pauses of 0.3 ms and twice that, 9 times at most. */
async function repeated(ask) {
  for (let ms = 0.3; ms < 100; ms *= 2) {
    const result = await ask();
    if (result !== undefined) return result;
    await sleep(ms);
  }
  throw new Error("no answer as of the revision");
}

export class Reads extends EventEmitter {
  alone = true; // the stream info decides
  #mirror = false; // one has answered
  #multi = true; // multi-key reads are permitted
  #leader = true; // reads from the leader are
  #ahead = 0; // the servers' clock before ours, as far as known
  up = true;

  /** One answer within ms, or an error with code "down", "silent", "none", "denied" or "large". */
  async ask(subject, body, timeout = 2000, headers) {
    const { nc } = this;
    try { // while it is not connected the transport would keep the message, and send it later (M38)
      if (!this.up || nc.isClosed() || nc.protocol?.connected === false) throw new Error("not connected");
      return await nc.request(subject, body, { timeout, headers });
    } catch (err) {
      throw unanswered(err, subject);
    }
  }

  async json(request, body, ms) {
    return (await this.ask("$JS.API." + request, body && JSON.stringify(body), ms)).json();
  }

  /** The stream info. It tells the clock of the server, whether the bucket is alone, and the keys of a filter. */
  async info(body = "") {
    const info = await this.json("STREAM.INFO." + this.stream, body);
    if (info.ts) this.#ahead = Date.parse(info.ts) - now();
    if (info.config) this.alone = isAlone(info) && !this.#mirror;
    return info;
  }

  /** Since when the leader leads that answers, or undefined: then the answer does not prove that something is absent (M40). */
  #complete = (info) => (this.alone || !info.cluster?.name ? "alone" : info.cluster.leader_since);

  /** The last revision of the bucket, named by its leader. */
  last = () => repeated(async () => {
    const info = await this.info();
    return this.#complete(info) && info.state.last_seq;
  });

  /** A message with its headers: the last value of each counts. */
  #record(h, data) {
    if (h("Nats-Stream") !== this.stream) {
      this.#mirror = true;
      this.alone = false;
      throw Object.assign(new Error("an answer of a mirror"), { code: "none" });
    }
    return {
      key: h("Nats-Subject").slice(this.subjects.length), rev: Number(h("Nats-Sequence")),
      time: Date.parse(h("Nats-Time-Stamp")), ttl: seconds(h("Nats-TTL")), rec: decodeRecord(data),
      gone: ["DEL", "PURGE"].includes(h("KV-Operation")) || !!h("Nats-Marker-Reason"),
    };
  }
  message = (msg) => this.#record((k) => msg.headers?.last(k), msg.data);

  /** One key by a direct get, from any replica: a record, null, or undefined where those are off. */
  async #direct(key) {
    try {
      const msg = await this.ask(`$JS.API.DIRECT.GET.${this.stream}.${this.subjects}${key}`, "");
      const code = msg.headers?.code;
      return code ? (code === 404 ? null : undefined) : this.message(msg);
    } catch (err) {
      if (err.code !== "none") throw err;
    }
  }

  /** One key from the leader: a record, null, or undefined where that is not permitted. */
  async #fromLeader(key) {
    if (!this.#leader) return undefined;
    const answer = await this.json("STREAM.MSG.GET." + this.stream, { last_by_subj: this.subjects + key }).catch((err) => {
      if (err.code !== "denied") throw err;
      this.#leader = false;
    });
    if (!answer || answer.error?.err_code === 10037) return answer && null;
    if (answer.error) throw new Error(answer.error.description);
    const m = answer.message, h = new Map();
    const lines = Buffer.from(m.hdrs ?? "", "base64").toString();
    for (const [, k, v] of lines.matchAll(/^([^:\r\n]+):[ \t]*(.*?)[ \t]*\r?$/gm)) h.set(k, v);
    h.set("Nats-Stream", this.stream).set("Nats-Subject", m.subject);
    h.set("Nats-Sequence", m.seq).set("Nats-Time-Stamp", m.time);
    return this.#record((k) => h.get(k), Buffer.from(m.data ?? "", "base64"));
  }

  /** One key as of revision N (M41): a record, a tombstone, or null. Without N it is any state. */
  async read(key, N = 0) {
    if (this.alone) N = 0;
    const m = await this.#direct(key);
    if (m !== undefined && (N === 0 || m?.rev >= N)) return m;
    if (N === 0) return (await this.#fromLeader(key)) ?? null;
    return repeated(async () => {
      const names = await this.#names(key, N);
      if (!names?.length) return names && null; // nobody else proves that there is no record
      const m = await this.#fromLeader(key); // a 404 proves nothing, since that one may be deposed
      if (m !== undefined) return m ?? undefined;
      const other = await this.#direct(key);
      return other?.rev >= N ? other : undefined;
    });
  }

  /** The lock and its queue in one state as of revision N (M65, M66), or key by key. To be sure is to have the
   * leader name the keys: a replica that catches up lacks some (M73). */
  async list(lock, queue, N = 0, sure = false) {
    if (this.alone) [N, sure] = [0, false];
    const many = this.#multi ? await repeated(() => this.#many([queue, lock], N)).catch(() => null) : null;
    const all = many && !sure ? many : await this.#byKey(lock, queue, N, many);
    return {
      lock: all.find((m) => m.key === lock) ?? null,
      places: all.filter((m) => m.key !== lock && !m.gone && m.rec?.s === WAITING).sort((x, y) => ticket(x) - ticket(y)),
    };
  }

  /** A multi-key read: its records, undefined from an older state, or null where another way has to be taken. */
  async #many(keys, N) {
    const found = [];
    const multi_last = keys.map((k) => this.subjects + k);
    const body = JSON.stringify({ multi_last, batch: 1024, max_bytes: 8388608 });
    try {
      const answers = await this.nc.requestMany("$JS.API.DIRECT.GET." + this.stream, body, { maxWait: 2000 });
      for await (const msg of answers) {
        const code = msg.headers?.code;
        if (code === 204 && msg.headers.last("Nats-Num-Pending") !== "0") return null;
        if (code === 204) {
          const upTo = Number(msg.headers.last("Nats-UpTo-Sequence"));
          if (upTo < this.highest) this.alone = false; // it has got replicas
          return upTo >= N ? found : undefined;
        }
        if (code === 404 && !found.length && N === 0) return []; // it names no revision, and behind records it means a part
        if (code) return null;
        found.push(this.message(msg));
      }
    } catch (err) {
      if (unanswered(err).code === "denied") this.#multi = false;
      return null;
    }
    throw new Error("no answer to a list");
  }

  /** The keys of a filter in a state as of N, or undefined: the answer is older, or proves nothing. */
  async #names(filter, N) {
    const names = [];
    for (let since; ; ) {
      const a = await this.info({ subjects_filter: this.subjects + filter, offset: names.length });
      const led = this.#complete(a);
      if (!led || led !== (since ??= led) || (!this.alone && a.state.last_seq < N)) return undefined;
      const page = Object.keys(a.state?.subjects ?? {});
      names.push(...page.map((s) => s.slice(this.subjects.length)));
      if (!page.length || names.length >= (a.total ?? 0)) return names;
    }
  }

  /** The lock first, then the keys of the queue, and each that a list does not have as long as it is named (M42). */
  async #byKey(lock, queue, N, list) {
    const found = list ?? [await this.read(lock, N)].filter(Boolean);
    const needed = Math.max(N, ...found.map((m) => (m.key === lock ? m.rev : 0)));
    const one = async (key) => {
      const m = await this.read(key);
      if (m?.gone && m.rev < N) return (await this.#fromLeader(key)) ?? m; // it may be from before a record
      return m ?? ((await this.#names(key, needed))?.length === 0 ? null : undefined);
    };
    const names = await repeated(() => this.#names(queue, needed));
    const lacking = names.filter((key) => !found.some((m) => m.key === key));
    return found.concat(await Promise.all(lacking.map((key) => repeated(() => one(key))))).filter(Boolean);
  }

  /** When a record ends by the clock of the servers: 300 ms after its TTL, and a millisecond for what
   * its time was truncated by. A record without a TTL and an unreadable one are never overdue. */
  endOf = (m) => (m.ttl && m.rec ? m.time + m.ttl * 1000 + 301 : Infinity);

  /** How long that is from now, by a guess of the server's clock, which only says when to ask. */
  untilEnd = (m) => this.endOf(m) - now() - this.#ahead;

  /** Whether a record that was read (M54) is overdue by a clock that a server tells (M55). */
  async overdue(m) {
    if (this.untilEnd(m) > 0) return false;
    const info = await this.info();
    return !!this.#complete(info) && Date.parse(info.ts) >= this.endOf(m);
  }
}
