import { count, element, eventItem, follow, href, merge, ordered, orders, put, status, sums, whole } from "./lib.js";

const size = 100; // rows of a page
const mostEvents = 200;
const by = (id) => document.getElementById(id);
const rows = new Map();
const asked = new URLSearchParams(location.search);
const view = {
  filter: asked.get("q") ?? "",
  sort: orders[asked.get("sort")] ? asked.get("sort") : "queue",
  reverse: asked.get("reverse") === "1",
  page: 0,
};
let order = []; // the rows that match, as they were ordered last
let orderedAt = 0;
let dirty = true; // the order is to be made anew
const says = status(by("panel"));

// busy says whether somebody is at work on the rows: they keep their places then.
const hovers = matchMedia("(hover: hover)");
let moved = 0;
for (const what of ["pointermove", "focusin", "keydown"]) by("rows").addEventListener(what, () => (moved = Date.now()));
const busy = () => Date.now() - moved < 15_000 && ((hovers.matches && by("rows").matches(":hover")) || by("rows").contains(document.activeElement));

function reorder(force) {
  if (!force && (!dirty || busy() || Date.now() - orderedAt < 2000)) return;
  order = ordered(rows, view.filter, view.sort, view.reverse);
  orderedAt = Date.now();
  dirty = false;
  view.page = Math.max(Math.min(view.page, Math.ceil(order.length / size) - 1), 0);
}

const cells = ["name", "kind", "state", "holder", "num since", "num ttl", "num queue", "num wait"];

function newRow() {
  const tr = element("tr");
  for (const c of cells) tr.append(element(c === "name" ? "th" : "td", c));
  const th = tr.firstChild;
  th.scope = "row";
  th.append(element("a", "mono"), element("span", "under"));
  return tr;
}

const ago = (t, now) => (t ? whole(now - t) : "–");

function fill(tr, was, now) {
  const row = rows.get(was.id) ?? was, [name, kind, state, holder, since, ttl, queue, wait] = tr.children;
  tr.classList.toggle("gone", !rows.has(was.id));
  tr.classList.toggle("alarm", row.alarm ?? false);
  const [link, under] = name.children, to = href(row);
  put(link, row.name);
  if (link.getAttribute("href") !== to) link.href = to;
  put(under, [row.kind, row.state, row.holder].filter(Boolean).join(" · "));
  put(kind, row.kind);
  put(state, row.state);
  put(holder, row.holder ?? "–");
  put(since, ago(row.since, now));
  put(ttl, !row.holder ? "–" : !row.expires ? "never" : row.expires < now ? "ended" : whole(row.expires - now + 999));
  put(queue, row.queue ? String(row.queue) : "–");
  put(wait, ago(row.wait, now));
  queue.classList.toggle("some", Boolean(row.queue));
}

function draw() {
  const now = says.now(), body = by("rows"), first = view.page * size;
  const shown = order.slice(first, first + size);
  while (body.children.length > shown.length) body.lastChild.remove();
  while (body.children.length < shown.length) body.append(newRow());
  shown.forEach((row, i) => fill(body.children[i], row, now));
  put(by("sums"), (view.filter ? `${order.length.toLocaleString("en")} of ` : "") + sums(rows, now));
  put(by("range"), order.length ? `${(first + 1).toLocaleString("en")}–${(first + shown.length).toLocaleString("en")} of ${order.length.toLocaleString("en")}` : "");
  by("before").disabled = view.page === 0;
  by("after").disabled = first + size >= order.length;
  by("before").parentElement.hidden = order.length <= size;
  by("none").hidden = order.length > 0;
  put(by("none"), rows.size ? "No lock matches the filter." : says.live() ? "No locks are held or waited for." : "Unknown which locks are held.");
  for (const th of by("head").children) {
    const chosen = th.dataset.sort === view.sort;
    const sort = chosen ? (rising() ? "ascending" : "descending") : "none";
    if (th.getAttribute("aria-sort") !== sort) th.setAttribute("aria-sort", sort);
  }
}

// rising says whether what is shown grows downwards: an early grant is a long hold.
const rising = () => ["queue", "since", "wait"].includes(view.sort) === view.reverse;

function changed() {
  const q = new URLSearchParams();
  if (view.filter) q.set("q", view.filter);
  if (view.sort !== "queue") q.set("sort", view.sort);
  if (view.reverse) q.set("reverse", "1");
  history.replaceState(null, "", q.size ? `?${q}` : "./");
  reorder(true);
  draw();
}

by("filter").value = view.filter;
by("filter").addEventListener("input", () => {
  view.filter = by("filter").value;
  view.page = 0;
  changed();
});
for (const th of by("head").children) {
  th.firstElementChild.addEventListener("click", () => {
    view.reverse = view.sort === th.dataset.sort && !view.reverse;
    view.sort = th.dataset.sort;
    view.page = 0;
    changed();
  });
}
for (const [id, step] of [["before", -1], ["after", 1]]) {
  by(id).addEventListener("click", () => {
    view.page += step;
    reorder(true);
    draw();
    by("panel").scrollIntoView({ block: "start" });
  });
}
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !e.ctrlKey && !e.metaKey && document.activeElement !== by("filter")) {
    e.preventDefault();
    by("filter").focus();
  } else if (e.key === "Escape" && document.activeElement === by("filter")) {
    by("filter").value = "";
    by("filter").dispatchEvent(new Event("input"));
  }
});

let paused = false, missed = 0;
by("pause").addEventListener("click", () => {
  paused = !paused;
  by("pause").setAttribute("aria-pressed", String(paused));
  put(by("pause"), paused ? "Resume" : "Pause");
  if (!paused && missed) skip(missed);
  missed = 0;
});

function skip(n) {
  by("events").prepend(element("li", "skip faint", `${count(n, "event")} not shown`));
}

function events(up) {
  const list = by("events"), now = says.now();
  if (paused) {
    missed += (up.all ? 0 : (up.lines?.length ?? 0)) + (up.left ?? 0);
    return;
  }
  if (up.all) list.replaceChildren();
  const top = list.scrollTop;
  if (up.left) skip(up.left);
  for (const line of up.lines ?? []) list.prepend(eventItem(line, now, true));
  while (list.children.length > mostEvents) list.lastChild.remove();
  if (top > 0 && up.lines) list.scrollTop = top; // the browser anchors it, where it can
}

follow("live", {
  message(up) {
    says.message(up);
    merge(rows, up);
    dirty ||= Boolean(up.all || up.rows || up.due || up.gone);
    events(up);
    reorder(Boolean(up.all));
    draw();
  },
  lost: says.lost,
});
setInterval(() => {
  says.draw();
  reorder(false);
  draw();
}, 1000);
