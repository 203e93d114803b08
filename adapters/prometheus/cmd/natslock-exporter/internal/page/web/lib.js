// What both pages have in common. What is computed here knows no document, so that it can be
// tested without a browser.

// brief is a duration in milliseconds for reading, to about two digits, as lockctl has it.
export function brief(ms) {
  if (ms < 1000) return `${Math.max(Math.round(ms), 0)}ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)}s`;
  return whole(ms);
}

// whole is a duration that counts on: in whole seconds.
export function whole(ms) {
  const s = Math.max(Math.floor(ms / 1000), 0), two = (n) => String(n).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86_400)}d${two(Math.floor(s / 3600) % 24)}h`;
}

// clock is a time for a screen: without the date if it is of the day of now.
export function clock(ms, now, millis = true) {
  const two = (n, w = 2) => String(n).padStart(w, "0"), t = new Date(ms), n = new Date(now);
  const day = `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} `;
  const time = `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}${millis ? "." + two(t.getMilliseconds(), 3) : ""}`;
  return (t.toDateString() === n.toDateString() ? "" : day) + time;
}

// count is a number of things.
export function count(n, what) {
  return `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
}

// href is the address of a lock's page. The server has escaped a key.
export function href(of) {
  return `lock?kind=${encodeURIComponent(of.kind)}&name=${of.key ?? encodeURIComponent(of.name)}`;
}

// merge brings the rows up to date, a Map by id. A row that changes is a new object.
export function merge(rows, update) {
  if (update.all) rows.clear();
  for (const row of update.rows ?? []) {
    row.text = `${row.name} ${row.holder ?? ""} ${row.kind} ${row.state}`.toLowerCase();
    rows.set(row.id, row);
  }
  for (const [id, expires] of update.due ?? []) {
    const row = rows.get(id);
    if (row) row.expires = expires;
  }
  for (const id of update.gone ?? []) rows.delete(id);
}

const plain = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const early = (a, b) => (a || Infinity) - (b || Infinity) || 0; // NaN: neither is there

// orders has each order with what is most interesting first, as lockctl top.
export const orders = {
  name: (a, b) => plain(a.name, b.name) || plain(a.kind, b.kind),
  kind: (a, b) => plain(a.kind, b.kind),
  state: (a, b) => (b.alarm ?? false) - (a.alarm ?? false) || plain(a.state, b.state),
  holder: (a, b) => plain(a.holder ?? "\uffff", b.holder ?? "\uffff"),
  since: (a, b) => early(a.since, b.since),
  expires: (a, b) => early(a.expires, b.expires),
  queue: (a, b) => (b.queue ?? 0) - (a.queue ?? 0),
  wait: (a, b) => early(a.wait, b.wait),
};

// ordered are the rows that match a filter, each word of it somewhere, in an order.
export function ordered(rows, filter, sort, reverse) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const row of rows.values()) if (words.every((w) => row.text.includes(w))) found.push(row);
  const by = orders[sort], turn = reverse ? -1 : 1;
  return found.sort((a, b) => turn * by(a, b) || orders.queue(a, b) || orders.wait(a, b) || orders.name(a, b));
}

// sums says in a few words what there is.
export function sums(rows, now) {
  let held = 0, waiting = 0, first = 0, alarms = 0;
  for (const r of rows.values()) {
    if (r.holder) held++;
    waiting += r.queue ?? 0;
    if (r.wait && (!first || r.wait < first)) first = r.wait;
    if (r.alarm) alarms++;
  }
  const parts = [count(rows.size, "lock"), `${held.toLocaleString("en")} held`, `${waiting.toLocaleString("en")} waiting`];
  if (first) parts.push(`longest wait ${whole(now - first)}`);
  if (alarms) parts.push(`${alarms.toLocaleString("en")} needing attention`);
  return parts.join(" · ");
}

// messages splits what has come of a stream into messages, and what is left of it.
export function messages(text) {
  const parts = text.split("\n\n");
  const rest = parts.pop();
  return [parts.filter((p) => p.startsWith("data: ")).map((p) => JSON.parse(p.slice(6))), rest];
}

const silence = 15_000; // without a message: the exporter says something each 5 s
const pauses = [500, 1000, 2000, 5000];

// follow calls on.message with each update, and on.lost with why there is none, until the page
// is left. A page that nobody sees does not follow: a browser has six connections to an address.
export function follow(address, on) {
  let tries = 0, under;
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  async function once(control) {
    let last = Date.now();
    const guard = setInterval(() => Date.now() - last > silence && control.abort(new Error("the exporter has gone silent")), 1000);
    try {
      const answer = await fetch(address, { signal: control.signal, headers: { Accept: "text/event-stream" } });
      if (!answer.ok) throw new Error((await answer.text()).trim() || `HTTP status ${answer.status}`);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let parts = [];
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the exporter closed the connection");
        last = Date.now();
        const seam = (parts.at(-1) ?? "").slice(-1) + value;
        parts.push(value);
        if (!seam.includes("\n\n")) continue; // a part of a long message
        const [all, rest] = messages(parts.join(""));
        parts = rest ? [rest] : [];
        for (const message of all) {
          if (message.bye) throw new Error(message.bye);
          tries = 0;
          on.message(message);
        }
      }
    } finally {
      clearInterval(guard);
    }
  }
  async function loop() {
    for (;;) {
      if (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
      const control = new AbortController();
      under = control;
      try {
        await once(control);
      } catch (err) {
        const why = control.signal.aborted ? control.signal.reason : err;
        if (why === "hidden") continue;
        on.lost(why instanceof TypeError ? "The exporter does not respond" : sentence(why.message));
      }
      await wait(pauses[Math.min(tries++, pauses.length - 1)]);
    }
  }
  let sleep;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleep);
    if (document.hidden) sleep = setTimeout(() => under?.abort("hidden"), 5000);
  });
  loop();
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// element makes an element with text. Text never is markup.
export function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

// put sets a text, if it has changed.
export function put(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

// tones are the colors of events.
const tones = { granted: "good", expired: "bad", broken: "bad", late: "bad", queued: "soft", "gave up": "soft" };

// eventItem is an event as an item of a list.
export function eventItem(line, now, withName) {
  const li = element("li");
  const time = element("time", "mono faint", clock(line.time, now));
  time.dateTime = new Date(line.time).toISOString();
  li.append(time, element("span", `event ${tones[line.event] ?? ""}`, line.event));
  if (withName) {
    const a = element("a", "mono", line.name);
    a.href = href(line);
    li.append(a);
  }
  const details = [line.who];
  if (line.mode) details.push(line.mode);
  if (line.waited) details.push(`waited ${brief(line.waited)}`);
  if (line.held) details.push(`held ${brief(line.held)}`);
  if (line.late) details.push(`${brief(line.late)} after the last time`);
  if (line.note) details.push(line.note);
  li.append(element("span", "details", details.join(" · ")));
  return li;
}

// status shows whether what the page shows is current. It returns what to call with each
// update, when there is none, and each second.
export function status(panel) {
  const by = (id) => document.getElementById(id);
  let offset = 0, state = "stale", since = 0, why = "connecting", asOf = 0, heard = 0;
  const now = () => Date.now() + offset;
  function draw() {
    const stale = why !== "";
    put(by("live"), !stale ? "live" : asOf || heard ? state : "connecting");
    by("dot").className = stale ? "dot off" : "dot on";
    by("banner").hidden = !stale || why === "connecting";
    panel.classList.toggle("stale", stale && why !== "connecting");
    put(by("trouble"), !stale ? "" : since ? `${sentence(state)} since ${clock(since, now(), false)}: ${why}.` : `${sentence(why)}.`);
    const age = asOf ? now() - asOf : 0;
    put(by("age"), !stale ? "" : asOf ? `The data below is ${whole(age)} old, from ${clock(asOf, now(), false)}. Retrying.` : "No data yet. Retrying.");
  }
  return {
    // now is the time of what is shown: it stands still while nothing is known.
    now: () => (why && asOf ? asOf : now()),
    // live reports whether a lock that is not shown is free.
    live: () => why === "",
    message(up) {
      offset = up.now - Date.now();
      heard = up.now;
      state = up.health.state;
      since = up.health.since ?? 0;
      why = (up.health.why ?? "").replace(/\.$/, "");
      asOf = up.health.asOf ?? 0;
      if (up.about) {
        put(by("bucket"), up.about.bucket);
        put(by("server"), up.about.server.replaceAll(",", ", ")); // a line breaks between addresses
        if (by("names")) put(by("names"), up.about.names === ">" ? "" : `only ${up.about.names}`);
      }
      draw();
    },
    lost(reason) {
      why = reason.replace(/\.$/, "");
      state = "stale";
      since = 0;
      draw();
    },
    draw,
  };
}
