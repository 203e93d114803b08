// The mutex: records that are kept (leases and places), claims and their attempts, the queue.
import { hostname } from "node:os";
import { ticket } from "./reads.js";
import { BROKEN, GONE, GRANTED, HELD, PASSED, WAITING, lockKey, placeKey } from "./record.js";
import { newId, now, sleep, token, ttlSeconds, validity } from "./record.js";

const started = Date.now() - Math.round(process.uptime() * 1000);

/** Pauses after failures: 50 ms, doubled up to 3.2 s, times 0.5 to 1.5. */
const backOff = (n) => Math.min(50 * 2 ** n, 3200) * (0.5 + Math.random());

/** Something to wait for: a ring is remembered until somebody waits. */
class Bell {
  #rung = false;
  #go = null;
  ring = () => ((this.#rung = true), this.#go?.());
  async wait(ms) {
    if (!this.#rung)
      await new Promise((go) => {
        const timer = setTimeout(go, Math.max(0, Math.min(ms, 2 ** 31 - 1)));
        this.#go = () => (clearTimeout(timer), go());
      });
    this.#rung = false;
    this.#go = null;
  }
}

/** A record that its client renews and believes in: a lease, or a place in the queue. */
export class Kept {
  ended = ""; // "", "lost", "broken", "released"
  onEnd = () => {};
  #r = 0;
  #sent = new Map(); // number of a renewal → { sent, ttl }
  #bell = new Bell();
  #kicked = false;
  #kick = () => ((this.#kicked = true), this.#bell.ring()); // renews at once
  #gone = () => this.end("lost"); // M19

  constructor(bucket, key, rec, ttl, rev, sent, number) {
    const { a, ...fields } = rec;
    Object.assign(this, { bucket, key, fields, rev, number }); // number: the token, or the ticket
    bucket.on("gone", this.#gone).on("reconnect", this.#kick);
    this.#believe(sent, ttl);
    this.#run();
  }

  get id() { return this.fields.id; }
  get token() { return this.number; }
  /** Whether the holder may work (M47). */
  get valid() { return !this.ended && now() < this.until; }
  get remaining() { return this.valid ? this.until - now() : 0; }

  /** Believes in the record for the validity of a write, from its sending on (M46). */
  #believe(sent, ttl) {
    Object.assign(this, { sent, ttl, until: sent + validity(ttl) });
    this.#bell.ring();
    const check = () => {
      if (now() >= this.until) return this.end("lost");
      this.timer = setTimeout(check, Math.min(this.until - now() + 1, 2 ** 31 - 1)).unref();
    };
    clearTimeout(this.timer);
    check();
  }

  end(why) {
    if (this.ended) return;
    this.ended = why;
    clearTimeout(this.timer);
    this.unwatch?.();
    this.bucket.off("gone", this.#gone).off("reconnect", this.#kick);
    this.#bell.ring();
    this.onEnd(why);
  }

  /** Renews at a third of the TTL, and tries again after a fifteenth, until the validity ends. */
  async #run() {
    let watchAt = this.fields.s === HELD ? now() + 1000 : Infinity, retryAt = 0;
    for (;;) {
      const due = Math.max(this.sent + (this.ttl * 1000) / 3, retryAt);
      await this.#bell.wait(Math.min(due, watchAt) - now());
      if (this.ended) return;
      if (now() >= watchAt) { // the renewal behind it proves the subscription
        watchAt = Infinity;
        const own = (m) => !m.gone && m.rec?.id === this.id && m.rec.s === HELD;
        this.unwatch = this.bucket.watch(this.key, (m) => own(m) || this.#kick());
      } else if (now() < due && !this.#kicked) continue; // it was renewed, or a timer was early
      this.#kicked = false;
      retryAt = (await this.#renew()) ? 0 : now() + Math.max(50, (this.ttl * 1000) / 15);
    }
  }

  /** One renewal, and the judgment of its answer. True if it is confirmed. */
  async #renew(ttl = this.ttl) {
    const r = ++this.#r;
    const w = this.bucket.write(this.key, this.rev, ttl, { ...this.fields, r, t: this.number, l: ttl }); // M51, M52, M84
    this.#sent.set(r, { sent: w.sent, ttl });
    this.until = Math.min(this.until, w.sent + validity(ttl)); // M50
    w.answer.then((a) => a.kind === "stored" && this.#confirm(a.rev, r));
    const a = await w.soon();
    if (a.kind === "refused") await this.#refused(a.n).catch(() => {});
    return a.kind === "stored" && !this.ended;
  }

  /** Renews at once, also with another TTL in seconds. False if the lease ends before that is confirmed. */
  async extend(ttl = this.ttl) {
    for (let i = 0; this.valid; await sleep(backOff(i++))) if (await this.#renew(ttl)) return true;
    return false;
  }

  #confirm(rev, r) {
    const { sent, ttl } = this.#sent.get(r) ?? {};
    if (!ttl || rev <= this.rev) return;
    this.rev = rev;
    if (this.ended && this.ended !== "lost") return;
    if (this.ended || now() >= this.until || now() >= sent + validity(ttl)) { // M48, M49
      this.bucket.erase(this.key, rev, { ...this.fields, t: this.number });
      return this.end("lost");
    }
    this.#believe(sent, ttl);
    for (const k of this.#sent.keys()) if (k < r) this.#sent.delete(k);
  }

  /** Judges the refusal of a renewal by a read of the key. */
  async #refused(n) {
    if (n > 0 && n <= this.rev) return; // an own renewal was in between, or no news
    const m = await this.bucket.read(this.key, Math.max(n, this.rev));
    if (this.ended || (m && (m.rev < this.rev || (m.rev === this.rev && !m.gone)))) return; // nothing has changed
    const own = m && !m.gone && m.rec?.id === this.id;
    if (own && m.rec.s === this.fields.s && this.#sent.has(m.rec.r)) return this.#confirm(m.rev, m.rec.r); // M85
    if (own && m.rec.s === BROKEN) this.rev = m.rev;
    this.end(own && m.rec.s === BROKEN ? "broken" : "lost"); // M87
  }

  /** Ends the record, which the holder's work has to precede (M88). The result is "released", "lost", "broken", or
   * "unknown" where no answer came until the record had ended. */
  async release(status = GONE) {
    this.end(this.valid ? "released" : "lost");
    const done = (why) => (this.ended === "released" ? why : this.ended);
    const begun = now(), last = this.sent + this.ttl * 1000;
    for (let i = 0, maybe = false; ; i++) {
      const { rev } = this;
      const a = await this.bucket.erase(this.key, rev, { ...this.fields, t: this.number }, status).soon(); // M89
      if (a.kind === "stored") return done("released");
      if (a.kind === "denied") return done("unknown");
      if (a.kind === "silent" || a.kind === "flight") maybe = true;
      const newest = Math.max(a.n ?? 0, rev);
      const m = a.kind === "refused" ? await this.bucket.read(this.key, newest).catch(() => undefined) : undefined;
      if (a.n < rev && !this.bucket.alone && (m || now() - begun > 1000)) maybe = true; // by a leader that is deposed
      if (m !== undefined && !(m && m.rev < rev)) {
        const own = m?.rec?.id === this.id;
        if (own && m.rec.s === BROKEN) this.ended = "broken";
        if (own && m.gone) return done("released"); // a try was stored, or it was broken at once
        if (!own) return done(maybe ? "released" : "lost");
        this.rev = m.rev;
        if (m.rev > rev) continue;
      }
      if (now() >= last && i > 0) return done("unknown");
      await sleep(a.kind === "flight" && i < 6 ? 0 : Math.min(backOff(i), 1000));
    }
  }
}

/** One acquisition of one key under one id (M26), with its attempts: of a lock, or of a place in its queue, which has
 * a key of its own and a TTL of 5 to 15 s. */
class Claim {
  id = newId();
  attempts = new Map(); // number → { rec, w, rev }
  over = false;
  lease = null;
  error = null;

  constructor(call, status = HELD) {
    Object.assign(this, { bucket: call.bucket, call, status, key: call.key, ttl: call.ttl });
    if (status === HELD) return;
    this.key = placeKey(call.name, this.id);
    this.ttl = Math.min(Math.max(call.ttl, 5), 15);
  }

  #number(rev) { return this.status === WAITING ? rev : token(rev); }

  /** Sends the next attempt, and more while another write is in flight. The last answer, or "silent" after 1 s. */
  async attempt(E) {
    for (let i = 0; ; i++) {
      const { fields, begun, place } = this.call, a = this.attempts.size + 1;
      const rec = { v: 1, s: this.status, id: this.id, c: this.bucket.client, a, l: this.ttl, at: Date.now(), ...fields };
      if (place) rec.w = Math.max(1, Math.round(now() - begun));
      const attempt = { rec, w: this.bucket.write(this.key, E, this.ttl, rec) };
      this.attempts.set(a, attempt);
      attempt.w.answer.then((x) => x.kind === "stored" && this.#stored(attempt, x.rev));
      const answer = await attempt.w.soon();
      if (this.over || answer.kind !== "flight" || i === 40) return answer;
      await sleep(i < 6 ? 0 : Math.random() * Math.min(2 ** (i - 6), 64));
    }
  }

  /** An attempt was stored: grants as of its sending, or ends the claim and its record. */
  #stored(attempt, rev) {
    if (attempt.rev === rev) return; // a read was quicker
    attempt.rev = rev;
    if (this.over) return this.#erase(rev); // M61, M62
    this.over = true;
    const { sent, floor, created } = attempt.w;
    if (rev <= floor) this.error = new Error(`${this.key}: tokens went backwards, from ${floor} to ${rev}`); // M53
    const late = now() >= sent + validity(this.ttl); // M48, M61
    if (late || this.error || this.bucket.unfit || created !== this.bucket.created) this.#erase(rev); // M21
    else this.lease = new Kept(this.bucket, this.key, attempt.rec, this.ttl, rev, sent, this.#number(rev));
    this.call.bell.ring();
  }

  #erase(rev) {
    this.bucket.erase(this.key, rev, { id: this.id, c: this.bucket.client, t: this.#number(rev) });
  }

  /** What a read of the key says: whether it is free. It may end the claim. */
  judge(m) {
    if (!m || m.gone) return true;
    if (m.rec?.id !== this.id || this.over) return false; // M34
    if (m.rec.s === BROKEN) {
      this.over = true; // M59
      this.#erase(m.rev);
    }
    const attempt = m.rec.s === this.status && !m.rec.r && this.attempts.get(m.rec.a);
    if (attempt && !attempt.rev) this.#stored(attempt, m.rev); // M60: as of that attempt
    return false;
  }
}

/** One call of lock(): the claims it makes, and its place. */
class Acquire {
  bell = new Bell();
  failures = 0;
  named = 0; // the highest revision that a server has named in an answer
  hinted = 0; // one that a notification has named since the last read
  place = null;

  constructor(bucket, name, { ttl = 15000, wait = Infinity, owner, metadata, signal } = {}) {
    Object.assign(this, { bucket, name, wait, signal, ttl: ttlSeconds(ttl), key: lockKey(name), begun: now() });
    this.fields = { o: owner, h: hostname(), p: process.pid, ps: started, d: metadata };
    this.claim = new Claim(this);
  }

  get left() { return this.signal?.aborted ? 0 : this.begun + this.wait - now(); }

  async run() {
    const { bucket, signal, bell } = this;
    const again = () => ((this.stale = true), bell.ring()); // every waiter proves its subscriptions anew, and reads
    bucket.on("reconnect", again);
    signal?.addEventListener("abort", bell.ring);
    try {
      if (!(await this.newcomer()) && this.wait > 0) await this.waiter();
    } catch (err) {
      if (!this.claim.lease) throw err;
    } finally {
      bucket.off("reconnect", again);
      signal?.removeEventListener("abort", bell.ring);
      this.claim.over = true; // from here on it grants nothing
      await this.leave();
    }
    return this.claim.lease;
  }

  /** Sends an attempt of a claim. The result is "granted", "refused", or why there is neither. It throws what another
   * try cannot help. */
  async attempt(claim, E) {
    if (this.bucket.unfit) throw new Error(`bucket ${this.bucket.name} is unfit: ${this.bucket.unfit}`); // M21
    const { kind, n = 0 } = await claim.attempt(E);
    this.named = Math.max(this.named, n);
    if (kind === "denied" || kind === "large") claim.error = new Error(`${claim.key}: the server takes no such write (${kind})`);
    if (kind !== "none") this.leaderless = 0;
    else if (now() - (this.leaderless ||= now()) > 15000) claim.error = new Error(`${claim.key}: no leader for 15 s`);
    if (claim.error) throw Object.assign(claim.error, { final: true });
    return claim.lease ? "granted" : kind === "stored" ? "refused" : kind;
  }

  async pause() {
    await this.bell.wait(Math.min(backOff(this.failures++), this.left));
  }

  /** What the next read has to contain. A notification counts once, since it may be forged. */
  asOf() {
    const N = Math.max(this.named, this.hinted);
    this.hinted = 0;
    return N;
  }

  /** The lock, and the places before the own one or, as a newcomer, all. Overdue places are deleted and left out: by a
   * waiter those right before its own, by a newcomer all. Without its own place in the list nothing is before it. */
  async list(byKey = false) {
    const { lock, places } = await this.bucket.list(this.key, placeKey(this.name, "*"), this.asOf(), byKey);
    this.failures = 0;
    const own = (m) => m.rec.id === this.place.id; // the id, not the key (M27)
    const end = this.place ? places.findIndex(own) : places.length;
    if (end < 0) return { lock, before: null };
    const before = places.slice(0, end);
    for (let i = end - 1; i >= 0; i--) {
      const now = await this.#buried(before[i]);
      if (!now || now.gone) before.splice(i, 1);
      else if (this.place) break;
    }
    return { lock, before };
  }

  /** What is under the key of a record that was read. If it is overdue, it is deleted first, at exactly its revision
   * (M56). */
  async #buried(m) {
    if (!m || m.gone || !(await this.bucket.overdue(m))) return m;
    const a = await this.bucket.erase(m.key, m.rev, { id: m.rec.id, c: this.bucket.client, t: ticket(m) }).soon();
    if (a.kind === "refused") return this.bucket.read(m.key, a.n);
    return a.kind === "stored" ? { ...m, rev: a.rev, gone: true } : m;
  }

  /** Takes a lock that is free and has no queue. Without a lease it is held, or somebody waits. */
  async newcomer() {
    const oneShot = this.wait <= 0;
    for (let E = 0; oneShot || this.left > 0; ) {
      if (this.claim.over) this.claim = new Claim(this);
      const kind = await this.attempt(this.claim, E);
      if (kind === "granted") break;
      if (kind !== "refused" && oneShot) throw new Error(`${this.key}: no answer to the claim (${kind})`);
      if (kind !== "refused") await this.pause();
      const asked = now();
      if (oneShot && !this.bucket.alone) this.named = Math.max(this.named, await this.bucket.last()); // M69
      const seen = await this.list().catch((err) => { // M65, M66
        if (oneShot) throw err;
      });
      if (!seen || seen.before.length) break; // M67, M69
      const lock = oneShot ? await this.#buried(seen.lock) : seen.lock;
      const free = this.claim.judge(lock);
      if (this.claim.lease || !free || (!oneShot && now() - asked > 100)) break; // M68
      E = lock?.rev ?? 0;
    }
    return this.claim.lease;
  }

  // --- The queue ---

  async waiter() {
    while (this.left > 0 && !this.claim.lease) {
      try {
        if (this.place?.valid) await this.turn();
        else await this.enqueue(); // M71
      } catch (err) {
        if (err.final) throw err;
        await this.pause();
      }
    }
  }

  /** Writes a place under a new id and key (M70), and keeps it. */
  async enqueue() {
    this.place = null;
    const claim = new Claim(this, WAITING);
    try {
      while (!claim.over && this.left > 0 && !this.claim.lease) {
        if ((await this.attempt(claim, 0)) === "refused") claim.judge(await this.bucket.read(claim.key, this.named));
        if (!claim.over) await this.pause();
      }
    } finally {
      claim.over = true;
      this.place = claim.lease;
    }
    if (!this.place) return;
    this.place.onEnd = this.bell.ring;
    this.named = Math.max(this.named, this.place.number);
  }

  /** Finds out who is before the place (M72), and waits for the end of that, or for the lock. */
  async turn() {
    this.stale = this.isFirst = false;
    let { lock, before } = await this.list();
    if (before?.length === 0 && !this.bucket.alone) ({ lock, before } = await this.list(true)); // M73
    if (!before) this.place.end("lost");
    else if (before.length) await this.behind(before.at(-1));
    else await this.first(lock);
  }

  /** Takes a notification for a hint (M44). */
  hear(m) {
    this.hinted = Math.max(this.hinted, m.rev);
    this.bell.ring();
  }

  /** The pauses after which a waiter reads by itself. */
  *pauses() {
    yield* [20, 100, 500];
    for (;;) yield ((this.place.ttl * 1000) / 3) * (1 + Math.random() / 10);
  }

  /** Waits for the end of the predecessor's place. After each the waiter lists the queue again. */
  async behind(pred) {
    let seen = pred, hint = false;
    const other = (m) => m.gone || m.rec?.id !== pred.rec.id;
    const unwatch = this.bucket.watch(pred.key, (m) => {
      if (m.rev <= pred.rev || !other(m)) return;
      hint = true;
      this.hear(m);
    });
    try {
      const n = await this.bucket.probe(pred.key);
      this.named = Math.max(this.named, n ?? 0);
      if (n !== undefined && n !== pred.rev) return;
      for (const ms of this.pauses()) {
        if (!hint) await this.bell.wait(Math.min(ms, Math.max(20, this.bucket.untilEnd(seen)), this.left));
        if (hint || this.stale || this.claim.lease || !this.place.valid || this.left <= 0) return;
        seen = await this.bucket.read(pred.key);
        this.named = Math.max(this.named, seen?.rev ?? 0);
        if (!seen || other(seen) || (await this.bucket.overdue(seen))) return;
      }
    } finally {
      unwatch();
    }
  }

  /** Claims whenever the lock is free, as the first waiter, as long as its place lasts (M71). */
  async first(lock) {
    this.isFirst = true;
    const unwatch = this.bucket.watch(this.key, (m) => m.gone && this.hear(m)); // M44: the loop reads
    const pauses = this.pauses();
    try {
      for (let E = lock?.gone ? lock.rev : 0, past = 0, full = 0; this.place.valid && this.left > 0 && !this.stale; ) {
        if (E !== null) {
          if (this.claim.over) this.claim = new Claim(this);
          const kind = await this.attempt(this.claim, E); // its refusal proves the subscription
          if (kind === "granted") return;
          if (kind === "full" && ++full > 3) await this.leave(); // which makes room
          if (kind === "refused") this.failures = 0;
          else await this.pause();
          if (!this.place) return;
        }
        const m = await this.#buried(await this.bucket.read(this.key, this.asOf()));
        const free = this.claim.judge(m); // M75: never at a live record
        if (this.claim.lease) return;
        if (free) E = m?.rev ?? 0;
        else {
          E = null;
          const end = this.bucket.untilEnd(m) - 300;
          if (end > 0) past = 0;
          const next = end > 0 ? end + 1 : past++ < 15 ? 20 : past < 25 ? 100 : 1000;
          await this.bell.wait(Math.min(next, pauses.next().value, this.left));
        }
      }
    } finally {
      unwatch();
    }
  }

  /** Leaves the queue: status 5 after a grant as the first, 9 after another (M77), else 4. A waiter that gives
   * up waits 100 ms for that. */
  async leave() {
    const { place } = this;
    this.place = null;
    if (!place) return;
    place.onEnd = () => {};
    const gone = place.release(!this.claim.lease ? GONE : this.isFirst ? GRANTED : PASSED);
    if (!this.claim.lease) await Promise.race([gone, sleep(100)]);
  }
}

/** Takes a mutex: a lease, or null if it is held and `wait` (ms, default for ever) is over or the signal aborted.
 * The options are ttl (ms), wait, owner, metadata and signal. */
export const lock = (bucket, name, options) => new Acquire(bucket, name, options).run();

/** Takes a mutex that is free, or returns null. */
export const tryLock = (bucket, name, options) => lock(bucket, name, { ...options, wait: 0 });
