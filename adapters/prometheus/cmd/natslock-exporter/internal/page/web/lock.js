import { brief, clock, count, element, eventItem, follow, put, status, whole } from "./lib.js";

const by = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
const query = location.search.slice(1).split("&").filter((p) => p.startsWith("kind=") || p.startsWith("name=")).join("&"); // as it was escaped
const says = status(by("panel"));
let lock, drawn, live = [], left = 0, story, fresh = false;

function pairs(dl, list) {
  for (const [what, value] of list) dl.append(element("dt", "", what), element("dd", "mono", value));
}

// counting elements are [element, time, how]: their text grows by itself.
let counting = [], ending = [];

function drawLock() {
  // What only is renewed is not drawn anew: somebody may be about to copy it.
  const shape = JSON.stringify(lock, (key, value) => (key === "expires" ? undefined : value));
  if (shape === drawn) {
    lock.holders.forEach((h, i) => (ending[i][1] = h.expires));
    tick();
    return;
  }
  drawn = shape;
  put(by("name"), lock.name);
  document.title = `${lock.name} – lock`;
  put(by("kind"), lock.kind);
  put(by("state"), lock.state);
  by("state").classList.toggle("bad", lock.alarm ?? false);
  by("group").hidden = !lock.group;
  if (lock.group) by("group").href = `group?name=${lock.group}`;
  counting = [];
  ending = [];
  by("holders").replaceChildren(...lock.holders.map((h) => {
    const card = element("article", h.broken ? "card bad" : "card");
    const dl = element("dl"), held = element("dd", "mono"), ends = element("dd", "mono");
    card.append(element("h3", "", h.title), element("p", "who mono", h.who));
    if (h.broken) card.append(element("p", "broken", `broken ${h.broken}`));
    dl.append(element("dt", "", "held"), held, element("dt", "", "TTL left"), ends);
    counting.push([held, h.since, (t, now) => `${whole(now - t)}, since ${clock(t, now, false)}`]);
    ending.push([ends, h.expires, (t, now) => (!t ? "never ends" : t < now ? "expired unless renewed since" : `${whole(t - now + 999)} unless renewed`)]);
    pairs(dl, h.facts);
    card.append(dl);
    if (h.meta) {
      const meta = element("dl", "meta");
      pairs(meta, h.meta);
      card.append(element("h4", "", "metadata"), meta);
    }
    return card;
  }));
  if (!lock.holders.length) by("holders").append(element("p", "none", says.live() ? "No client holds it." : "Unknown whether it is held."));
  if (lock.more?.[0]) by("holders").append(element("p", "none", `and ${count(lock.more[0], "holder")} more`));
  const rows = lock.queue.map((w) => {
    const tr = element("tr"), waits = element("td", "num mono");
    tr.append(element("td", "num mono", String(w.position)), element("td", "holder mono", w.who), element("td", "", w.mode), waits, element("td", "num mono ticket", w.ticket));
    counting.push([waits, w.since, (t, now) => whole(now - t)]);
    return tr;
  });
  by("queue").replaceChildren(...rows);
  by("queue-table").hidden = !rows.length;
  by("no-queue").hidden = rows.length > 0;
  put(by("waiting"), lock.waiting ? `${lock.waiting.toLocaleString("en")} waiting${lock.more?.[1] ? `, first ${rows.length} places shown` : ""}` : "");
  tick();
}

function tick() {
  const now = says.now();
  for (const [e, t, text] of [...counting, ...ending]) put(e, text(t, now));
}

const svg = (tag, attributes) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
};

const bad = ["expired", "broken"];

// fitted is a story whose time begins with what it tells.
function fitted(s) {
  const first = Math.min(...s.spans.map((p) => p.from), ...s.gaps.map((g) => g.from ?? s.from), s.to - 1000);
  return { ...s, from: Math.max(s.from, first - (s.to - first) / 50) };
}

// chart draws holds and waits as bars over the time of the story.
function chart(s) {
  const wide = 1000, high = 18, all = s.to - s.from, at = (t) => ((Math.min(Math.max(t, s.from), s.to) - s.from) / all) * wide;
  const box = svg("svg", { viewBox: `0 0 ${wide} ${Math.max(s.lanes, 1) * high}`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(s.spans.length, "hold or wait")} from ${clock(s.from, s.to)} to ${clock(s.to, s.to)}; listed as text below`, height: Math.max(s.lanes, 1) * high });
  const bar = (from, to, y, h, name, title) => {
    const r = svg("rect", { x: at(from), y, width: Math.max(at(to) - at(from), 1.5), height: h, class: name });
    r.append(svg("title", {}));
    r.firstChild.textContent = title;
    box.append(r);
  };
  for (const g of s.gaps) bar(g.from ?? s.from, g.to, 0, Math.max(s.lanes, 1) * high, "gap", g.text);
  for (const p of s.spans) {
    const waits = p.how === "waited" || p.how === "gave up";
    const what = waits ? p.how : p.how ? `held, ${p.how}` : "holding it";
    bar(p.from, p.to, p.lane * high + (waits ? 5 : 2), waits ? 8 : 14, waits ? "wait" : bad.includes(p.how) ? "bad" : p.how ? "hold" : "hold now", `${p.who}${p.mode ? ` (${p.mode})` : ""}: ${what}, ${brief(p.to - p.from)}, from ${clock(p.from, s.to)}`);
  }
  return box;
}

function drawStory() {
  const s = story, now = says.now();
  const notes = [];
  if (s.why) notes.push(s.why);
  if (s.why && s.lines.length) notes.push("The events that this exporter has seen are below.");
  if (!s.why && !s.lines.length && !live.length) notes.push("Nothing happened in this time.");
  if (s.left) notes.push(`${count(s.left, "earlier event")} in this time not shown.`);
  if (s.spare) notes.push(`${count(s.spare, "hold or wait").replace("waits", "waits")} not drawn.`);
  if (s.missing) notes.push(`${count(s.missing, "write")} to the bucket missing in this time, nearly all to other locks.`);
  for (const g of s.gaps) notes.push(`${g.text[0].toUpperCase()}${g.text.slice(1)}${g.from ? `, from ${clock(g.from, now)}` : ""} until ${clock(g.to, now)}.`);
  put(by("note"), notes.slice(0, 8).join(" "));
  by("note").hidden = !notes.length;
  put(by("remedy"), s.remedy ?? "");
  by("remedy").hidden = !s.remedy;
  by("strip").hidden = !s.spans.length;
  if (s.spans.length) {
    const shown = fitted(s);
    by("chart").replaceChildren(chart(shown));
    put(by("from"), clock(shown.from, now, false));
    put(by("middle"), clock((shown.from + s.to) / 2, now, false));
    put(by("to"), clock(s.to, now, false));
  }
  drawEvents();
}

let ahead = 0;

function drawEvents() {
  const now = says.now(), after = story ? story.to + ahead : 0;
  const items = [...(story?.lines ?? []), ...live.filter((l) => l.time > after)].reverse().slice(0, 500).map((l) => eventItem(l, now, false));
  if (left) items.unshift(element("li", "skip faint", `up to ${count(left, "event")} not shown`));
  by("events").replaceChildren(...items);
}

let took = 0, reading = false;

async function read() {
  if (reading) return;
  reading = true;
  const begun = Date.now();
  by("again").disabled = true;
  try {
    const answer = await fetch(`history?${query}&for=${by("ago").value}`);
    if (!answer.ok) throw new Error(await answer.text());
    story = await answer.json();
    live = live.filter((l) => l.time > story.to + ahead);
    left = 0;
    fresh = false;
    drawStory();
  } catch (err) {
    put(by("note"), err instanceof TypeError ? "The exporter does not respond." : err.message);
    by("note").hidden = false;
  } finally {
    took = Date.now() - begun;
    reading = false;
    by("again").disabled = false;
  }
}

by("again").addEventListener("click", read);
by("ago").addEventListener("change", read);

if (!query.includes("kind=") || !query.includes("name=")) {
  put(by("name"), "Page not found");
  says.lost("The address does not specify a lock");
} else {
  put(by("kind"), asked.get("kind") ?? "");
  follow(`live?${query}`, {
    message(up) {
      says.message(up);
      ahead = up.ahead ?? 0;
      if (up.lock) {
        lock = up.lock;
        drawLock();
      }
      if (up.all) {
        live = [];
        left = 0;
      }
      if (up.lines?.length || up.left) {
        live.push(...(up.lines ?? []));
        live = live.slice(-500);
        left += up.left ?? 0;
        fresh = true;
      }
      if (up.all) read();
      else if (up.lines?.length || up.left) drawEvents();
    },
    lost: says.lost,
  });
  setInterval(() => {
    says.draw();
    tick();
  }, 1000);
  // A history that is read quickly follows the lock.
  setInterval(() => fresh && took < 250 && !document.hidden && read(), 10_000);
}
