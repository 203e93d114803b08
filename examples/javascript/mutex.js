// The mutex: records that are kept (leases and places), claims and their attempts, the queue.
import { hostname } from "node:os";
import { ticket } from "./bucket.js";
import { BROKEN, GONE, GRANTED, HELD, PASSED, WAITING, lockKey, newId, now, placeKey, sleep, token, ttlSeconds, validity } from "./record.js";

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

  constructor(bucket, key, rec, ttl, rev, sent, number) {
    const { a, ...fields } = rec;
    Object.assign(this, { bucket, key, fields, ttl, rev, sent, number }); // number: the token, or the ticket
    this.until = sent + validity(ttl); // M46: from the sending
    this.#arm();
    this.#run();
  }

  get id() { return this.fields.id; }
  get token() { return this.number; }
  /** Whether the holder may work (M47). */
  get valid() { return !this.ended && now() < this.until; }
  get remaining() { return this.valid ? this.until - now() : 0; }

  #arm() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (now() >= this.until ? this.end("lost") : this.#arm()), Math.min(this.until - now() + 1, 2 ** 31 - 1));
    this.timer.unref();
  }

  end(why) {
    if (this.ended) return;
    this.ended = why;
    clearTimeout(this.timer);
    this.unwatch?.();
    this.bucket.off("gone", this.gone);
    this.bucket.off("reconnect", this.#kick);
    this.#bell.ring();
    this.onEnd(why);
  }

  /** Renews at a third of the TTL, and tries again after a fifteenth, until the validity ends. */
  async #run() {
    this.gone = () => this.end("lost"); // M19
    this.bucket.on("gone", this.gone);
    this.bucket.on("reconnect", this.#kick);
    let watchAt = this.fields.s === HELD ? now() + 1000 : Infinity, retryAt = 0;
    for (;;) {
      const due = Math.max(this.sent + this.ttl * 1000 / 3, retryAt);
      await this.#bell.wait(Math.min(due, watchAt, this.until) - now());
      if (this.ended) return;
      if (now() >= watchAt) { // the renewal behind it proves the subscription
        watchAt = Infinity;
        this.unwatch = this.bucket.watch(this.key, (m) => (m.rec?.id !== this.id || m.gone || m.rec.s !== HELD) && this.#kick());
      } else if (now() < due && !this.#kicked) continue; // another TTL, or a timer that was early
      this.#kicked = false;
      retryAt = (await this.renew()) ? 0 : now() + Math.max(50, this.ttl * 1000 / 15);
    }
  }

  /** One renewal, and the judgement of its answer. True if it is confirmed. */
  async renew(ttl = this.ttl) {
    if (this.ended) return false;
    const r = ++this.#r;
    const w = this.bucket.write(this.key, this.rev, ttl, { ...this.fields, r, t: this.number, l: ttl }); // M51, M52, M84
    this.#sent.set(r, { sent: w.sent, ttl });
    if (ttl < this.ttl) this.until = Math.min(this.until, w.sent + validity(ttl)); // M50
    w.answer.then((a) => a.kind === "stored" && this.#confirm(a.rev, r));
    const a = await w.soon();
    if (a.kind === "stored") return !this.ended;
    if (a.kind === "refused") await this.#refused(a.n);
    return false;
  }

  #confirm(rev, r) {
    const { sent, ttl } = this.#sent.get(r) ?? {};
    if (sent === undefined || rev <= this.rev) return;
    this.rev = rev;
    if (this.ended && this.ended !== "lost") return;
    const until = sent + validity(ttl);
    if (this.ended || now() >= this.until || now() >= until) { // M48, M49
      this.bucket.erase(this.key, rev, { ...this.fields, t: this.number }, GONE);
      return this.end("lost");
    }
    Object.assign(this, { sent, ttl, until });
    this.#arm();
    this.#bell.ring();
    for (const k of this.#sent.keys()) if (k < r) this.#sent.delete(k);
  }

  async #refused(n) {
    if (n === this.rev || (n > 0 && n < this.rev)) return; // an own renewal was in between, or no news
    const m = await this.#read();
    if (m === undefined || this.ended) return;
    if (m && !m.gone && m.rev === this.rev) return; // nothing has changed
    if (m && m.rev < this.rev) return;
    if (m && !m.gone && m.rec?.id === this.id && m.rec.s === this.fields.s && this.#sent.has(m.rec.r)) return this.#confirm(m.rev, m.rec.r); // M85
    if (m && !m.gone && m.rec?.id === this.id && m.rec.s === BROKEN) {
      this.rev = m.rev;
      return this.end("broken"); // M86
    }
    this.end("lost"); // M87
  }

  /** Reads the own key until there is an answer, or the validity is over. */
  async #read() {
    for (let ms = 1; !this.ended && now() < this.until; ms = Math.min(ms * 2, 64)) {
      try {
        return await this.bucket.read(this.key);
      } catch {
        await sleep(ms);
      }
    }
  }

  /** Renews at once, also with another TTL in seconds. */
  async extend(ttl = this.ttl) {
    for (let i = 0; !this.ended && now() < this.until; i++) {
      if (await this.renew(ttl)) return true;
      await sleep(backOff(i));
    }
    return false;
  }

  /** Ends the record, which the holder's work has to precede (M88). The result is "released", "lost", "broken", or
   * "unknown" where no answer came until the record had ended. */
  async release(status = GONE) {
    const was = this.ended === "" && now() >= this.until ? "lost" : this.ended;
    this.end("released");
    const done = (why) => (was && was !== "released" ? was : why);
    const own = (m) => m?.rec?.id === this.id;
    let broken = false, maybe = false;
    const last = this.sent + this.ttl * 1000;
    for (let i = 0; ; i++) {
      const rev = this.rev;
      const a = await this.bucket.erase(this.key, rev, { ...this.fields, t: this.number }, status).soon(); // M89
      if (a.kind === "stored") return broken ? "broken" : done("released");
      if (a.kind === "denied") return "unknown";
      if (a.kind === "silent" || a.kind === "flight") maybe = true;
      if (a.kind === "refused") {
        const m = await this.bucket.read(this.key).catch(() => undefined);
        if (own(m) && m.gone) return m.rec.s === BROKEN ? "broken" : done("released");
        if (own(m) && m.rev > rev) {
          broken = m.rec.s === BROKEN;
          this.rev = m.rev;
          continue;
        }
        if (m !== undefined && !(m && m.rev <= rev)) return done(maybe ? "released" : "lost");
      }
      if (now() >= last && i > 0) return done("unknown");
      await sleep(a.kind === "flight" && i < 6 ? 0 : Math.min(backOff(i), 1000));
    }
  }
}

/** One acquisition of one key under one id (M26), with its attempts: of a lock, or of a place in its queue. */
class Claim {
  id = newId();
  status = HELD;
  attempts = new Map(); // number → { E, w, rev }
  over = false;
  lease = null;
  error = null;

  constructor(bucket, key, ttl, fields, begun, bell) {
    Object.assign(this, { bucket, key, ttl, fields, begun, bell });
  }

  /** The claim of a place: under a key of its own, with a TTL of 5 to 15 s. */
  static place(bucket, name, ttl, fields, begun, bell) {
    const c = new Claim(bucket, "", Math.min(Math.max(ttl, 5), 15), fields, begun, bell);
    return Object.assign(c, { status: WAITING, key: placeKey(name, c.id) });
  }

  #number(rev) { return this.status === WAITING ? rev : token(rev); }

  /** Sends the next attempt. The kind of its answer, or "silent" after a second. */
  async attempt(E, queued = false) {
    const a = this.attempts.size + 1;
    const wait = queued ? Math.max(1, Math.round(now() - this.begun)) : 0;
    const rec = { v: 1, s: this.status, id: this.id, c: this.bucket.client, a, l: this.ttl, at: Date.now(), w: wait, ...this.fields };
    const att = { E, rec, w: this.bucket.write(this.key, E, this.ttl, rec) };
    this.attempts.set(a, att);
    att.w.answer.then((x) => x.kind === "stored" && this.#stored(att, x.rev));
    return att.w.soon();
  }

  #stored(att, rev) {
    if (att.rev === rev) return; // a read was quicker
    att.rev = rev;
    if (this.over) return this.#erase(rev); // M61, M62
    this.#grant(att, rev);
  }

  /** Grants as of the sending of an attempt, or ends the claim and its record. */
  #grant(att, rev) {
    this.over = true;
    const { sent, floor, created } = att.w;
    if (rev <= floor) this.error = new Error(`${this.key}: tokens went backwards, from ${floor} to ${rev}`); // M53
    if (this.error || this.bucket.unfit || created !== this.bucket.created || now() >= sent + validity(this.ttl)) this.#erase(rev); // M21, M48, M58
    else this.lease = new Kept(this.bucket, this.key, att.rec, this.ttl, rev, sent, this.#number(rev));
    this.bell.ring();
  }

  #erase(rev) {
    this.bucket.erase(this.key, rev, { id: this.id, c: this.bucket.client, t: this.#number(rev) }, GONE);
  }

  /** What a read of the key says: "free", "held", or "over" if it has ended the claim. */
  judge(m) {
    if (!m || m.gone) return "free";
    if (m.rec?.id !== this.id) return "held"; // M33, M34
    if (m.rec.s === BROKEN) {
      this.over = true; // M59
      this.#erase(m.rev);
      return "over";
    }
    const att = m.rec.s === this.status && !m.rec.r && this.attempts.get(m.rec.a);
    if (!att || att.rev || this.over) return "held";
    att.rev = m.rev;
    this.#grant(att, m.rev); // M60: as of that attempt
    return "over";
  }

  /** Ends the claim, and takes away what attempts without an answer may have left or may yet make. */
  giveUp() {
    this.over = true;
    const seen = new Set();
    for (const { E, w } of this.attempts.values()) {
      if (w.result?.kind !== "silent" && w.result !== undefined) continue;
      if (seen.has(E)) continue;
      seen.add(E);
      this.bucket.erase(this.key, E, { id: this.id, c: this.bucket.client }, GONE).soon().then(async (a) => {
        const m = a.kind === "refused" && (await this.bucket.read(this.key));
        if (m && !m.gone && m.rec?.id === this.id) this.#erase(m.rev);
      }).catch(() => {});
    }
  }
}

/** An acquire that another try cannot help. */
export class Refused extends Error {}

/** One call of lock(): the claims it makes, and its place. */
class Acquire {
  bell = new Bell();
  failures = 0;
  leaderless = 0;
  e = 0;

  constructor(bucket, name, { ttl = 15000, wait = Infinity, owner, metadata, signal } = {}) {
    Object.assign(this, { bucket, name, wait, signal });
    this.ttl = ttlSeconds(ttl);
    this.key = lockKey(name);
    this.queue = placeKey(name, "*");
    this.fields = { o: owner, h: hostname(), p: process.pid, ps: started, d: metadata };
    this.begun = now();
    this.newClaim();
  }

  newClaim() {
    this.claim = new Claim(this.bucket, this.key, this.ttl, this.fields, this.begun, this.bell);
  }

  get left() { return this.signal?.aborted ? 0 : this.begun + this.wait - now(); }

  /** Sends an attempt, and says what to do: "granted", "refused", or "again" after a pause. */
  async attempt(E, queued) {
    if (this.bucket.unfit) throw new Error(`bucket ${this.bucket.name} is unfit: ${this.bucket.unfit}`); // M21
    if (this.claim.over && !this.claim.lease && !this.claim.error) this.newClaim();
    for (let i = 0; ; i++) {
      const a = await this.claim.attempt(E, queued);
      if (this.claim.error) throw this.claim.error;
      if (this.claim.lease) return "granted";
      if (a.kind === "flight") {
        await sleep(i < 6 ? 0 : Math.random() * Math.min(2 ** (i - 6), 64));
        if (i < 40) continue;
      }
      this.answered(a);
      this.fullTries = a.kind === "full" ? (this.fullTries ?? 0) + 1 : 0;
      if (a.kind === "refused" || a.kind === "stored") return "refused";
      return a.kind;
    }
  }

  /** Throws what ends an acquire: a refused permission, a record that is too large, 15 s without a leader. */
  answered(a) {
    if (a.kind === "denied") throw new Refused(`${this.key}: the server permits no write`);
    if (a.kind === "large") throw new Refused(`${this.key}: the record is too large for the server`);
    if (a.kind !== "none") this.leaderless = 0;
    else if (now() - (this.leaderless ||= now()) > 15000) throw new Refused(`${this.key}: no leader for 15 s`);
  }

  async pause(most = Infinity) {
    await this.bell.wait(Math.min(backOff(this.failures++), most, this.left));
  }

  /** The lock and the queue, with overdue places deleted and left out. It throws if there is no answer. */
  async list(mine) {
    const { lock, places } = await this.bucket.list(this.key, this.queue);
    this.failures = 0;
    const end = mine ? places.findIndex((m) => m.rec.id === mine.id) : places.length; // the id, not the key (M27)
    if (end < 0) return { lock, missing: true };
    let before = places.slice(0, end);
    // A waiter deletes the overdue places right before its own, a newcomer all.
    for (let i = end - 1; i >= 0; i--) {
      if (!(await this.bucket.overdue(before[i]))) {
        if (mine) break;
      } else if (await this.#buried(before[i])) before.splice(i, 1);
    }
    return { lock, before };
  }

  /** Deletes an overdue place at exactly its revision (M56). Whether it is gone. */
  async #buried(m) {
    const a = await this.bucket.erase(m.key, m.rev, { id: m.rec.id, c: m.rec.c, t: ticket(m) }, GONE).soon();
    if (a.kind === "stored") return true;
    if (a.kind !== "refused") return false;
    const seen = await this.bucket.read(m.key);
    return !seen || seen.gone;
  }

  async run() {
    const { bucket } = this;
    const ring = this.bell.ring;
    const renew = () => ((this.stale = true), ring()); // every waiter proves its subscriptions anew, and reads
    bucket.on("reconnect", renew);
    this.signal?.addEventListener("abort", ring);
    let failure;
    try {
      if (!(await this.newcomer()) && this.wait > 0) await this.waiter();
    } catch (err) {
      failure = err;
    }
    bucket.off("reconnect", renew);
    this.signal?.removeEventListener("abort", ring);
    const { lease } = this.claim;
    if (!lease) this.claim.giveUp(); // from here on it grants nothing
    else if (failure) await lease.release();
    await this.leave();
    if (failure) throw failure;
    return lease;
  }

  /** Takes a lock that is free and has no queue. A lease, or null: it is held, or somebody waits. */
  async newcomer() {
    const oneShot = !(this.wait > 0);
    let E = 0;
    for (;;) {
      const kind = await this.attempt(E, false);
      if (kind === "granted") return this.claim.lease;
      if (kind !== "refused" && oneShot) throw new Error(`${this.key}: no answer to the claim (${kind})`);
      if (kind !== "refused") await this.pause();
      if (this.left <= 0 && !oneShot) return this.claim.lease;
      const asked = now();
      let view;
      try {
        view = await this.list(); // M65
      } catch (err) {
        if (oneShot) throw err;
        return null;
      }
      if (view.before.length) return null; // M67, M69
      const state = this.claim.judge(view.lock);
      if (this.claim.lease) return this.claim.lease;
      if (state === "held" && !(oneShot && (await this.bucket.overdue(view.lock)))) return null;
      if (!oneShot && now() - asked > 100) return null; // M68, M134
      E = view.lock?.rev ?? 0;
    }
  }

  // --- The queue ---

  /** Writes a place under a new id and key (M70), and keeps it. */
  async enqueue() {
    const claim = Claim.place(this.bucket, this.name, this.ttl, { ...this.fields, e: this.e }, this.begun, this.bell);
    try {
      for (let i = 0; this.left > 0 && !this.claim.lease; ) {
        const a = await claim.attempt(0);
        if (claim.error) throw claim.error;
        if (!claim.over && a.kind === "refused") claim.judge(await this.bucket.read(claim.key));
        if (claim.over) break;
        if (a.kind === "flight" && i++ < 6) continue;
        this.answered(a);
        await this.pause();
      }
    } finally {
      if (!claim.over) claim.giveUp();
    }
    this.place = claim.lease;
    if (this.place) this.place.onEnd = this.bell.ring;
  }

  async waiter() {
    while (this.left > 0) {
      try {
        if (!this.place || this.place.ended) await this.requeue(); // M71, M57
        if (this.claim.lease) return;
        if (!this.place) continue;
        const step = await this.turn();
        if (step === "granted") return;
        if (step === "full") {
          await this.leave();
          await this.pause();
        }
      } catch (err) {
        if (err instanceof Refused || err === this.claim.error) throw err;
        await this.pause();
      }
      if (this.claim.error) throw this.claim.error;
      if (this.claim.lease) return;
    }
  }

  /** Queues again. `e` rises if another waiter has deleted the place before its validity was over. */
  async requeue() {
    if (this.place?.ended === "lost" && now() < this.place.until) this.e++;
    this.place = null;
    await this.enqueue();
  }

  /** Finds out who is before the place, and waits for it or for the lock. */
  async turn() {
    this.stale = this.isFirst = false;
    const { lock, before, missing } = await this.list(this.place); // M72
    if (missing) return this.place.end("lost");
    if (before.length === 0) return this.first(lock);
    if ((await this.behind(before[before.length - 1])) === "first") return this.first(null);
  }

  /** The pauses after which a waiter reads by itself. */
  *pauses() {
    yield* [20, 100, 500];
    for (;;) yield (this.place.ttl * 1000 / 3) * (1 + Math.random() / 10);
  }

  /** Waits for the end of the predecessor's place. "first" if it got the lock. */
  async behind(pred) {
    let heir = false, changed = false, seen = pred;
    const unwatch = this.bucket.watch(pred.key, (m) => {
      if (m.rev < pred.rev) return;
      if (m.gone && m.rec?.s === GRANTED && m.rec.id === pred.rec.id) heir = true;
      else if (m.gone || m.rec?.id !== pred.rec.id) changed = true;
      else return;
      this.bell.ring();
    });
    try {
      const n = await this.bucket.probe(pred.key);
      if (n !== null && n !== pred.rev) return;
      for (const ms of this.pauses()) {
        if (!heir && !changed) await this.bell.wait( // a hint that it was granted is read up on like any other (M43)
          Math.min(ms, Math.max(20, this.bucket.untilEnd(seen)), this.left));
        if (this.place.ended || this.left <= 0 || this.claim.lease || this.stale || changed) return;
        const m = await this.bucket.read(pred.key).catch(() => undefined);
        if (m === null || m?.gone) return m?.rec?.s === GRANTED && m.rec.id === pred.rec.id ? "first" : "";
        if (m && (m.rec?.id !== pred.rec.id || (await this.bucket.overdue(m)))) return;
        [heir, seen] = [false, m ?? seen];
      }
    } finally {
      unwatch();
    }
  }

  /** Claims whenever the lock is free or overdue, as the first waiter. */
  async first(lock) {
    this.isFirst = true;
    const unwatch = this.bucket.watch(this.key, (m) => m.gone && this.bell.ring()); // M43: the loop reads
    try {
      let E = lock?.gone ? lock.rev : 0, past = 0, pauses = this.pauses();
      for (;;) {
        if (!this.place.valid || this.left <= 0 || this.stale) return; // M76
        if (E !== null) {
          const kind = await this.attempt(E, true); // its refusal proves the subscription
          if (kind === "granted") return kind;
          if (kind === "full" && this.fullTries > 3) return "full";
          if (kind !== "refused") await this.pause();
          else this.failures = 0;
        }
        if (!this.place.valid || this.left <= 0) return;
        let m;
        try {
          m = await this.bucket.read(this.key);
        } catch {
          await this.pause();
          continue;
        }
        const state = this.claim.judge(m);
        if (this.claim.lease) return "granted";
        if (state === "free") E = m?.rev ?? 0; // M75: never at a live record
        else if (m && (await this.bucket.overdue(m))) E = m.rev;
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

  /** Leaves the queue: status 5 after a grant as the first, 9 after another (M77), else 4 (M78). A waiter that gives
   * up waits 100 ms for that. */
  async leave() {
    const place = this.place;
    if (!place) return;
    this.place = null;
    place.onEnd = () => {};
    const gone = place.release(!this.claim.lease ? GONE : this.isFirst ? GRANTED : PASSED).catch(() => {});
    if (!this.claim.lease) await Promise.race([gone, sleep(100)]);
  }
}

/** Takes a mutex: a lease, or null if it is held and `wait` (ms, default for ever) is over or the signal aborted.
 * The options are ttl (ms), wait, owner, metadata and signal. */
export const lock = (bucket, name, options) => new Acquire(bucket, name, options).run();

/** Takes a mutex that is free, or returns null. */
export const tryLock = (bucket, name, options) => lock(bucket, name, { ...options, wait: 0 });
