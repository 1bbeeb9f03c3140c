"use strict";

const GUTTER = 118, EDGE = 10, ROW = 30, BAR = 22, AXIS = 24, STEPS = 18, BELOW = 16, HUES = 6, MOST_ARROWS = 500;

// -- numbers and words --

function said(seconds) {
  const size = Math.abs(seconds);
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3], ["us", 1e-6]])
    if (size >= scale) return `${trimmed(seconds / scale)} ${unit}`;
  return size ? `${trimmed(seconds * 1e9)} ns` : "0 s";
}

function trimmed(number) {
  return String(Number(number.toPrecision(Math.abs(number) >= 1000 ? 6 : 4)));
}

/** Round moments from a first to a last one, about as many as asked for. */
function ticks(from, to, wanted) {
  const raw = (to - from) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
  const apart = [1, 2, 5, 10].map((n) => n * power).find((one) => one >= raw);
  const found = [];
  for (let n = Math.ceil(from / apart); n * apart <= to; n++) found.push(n * apart || 0);
  return found;
}

/** Where a panel's time begins when panels are lined up at a step. */
function zero(panel, step) {
  if (step in panel.begins) return panel.begins[step];
  const known = Object.values(panel.begins);
  return known.length ? known[0] : 0;
}

/** The first and the last moment of panels that are lined up at a step. */
function extent(panels, step) {
  let from = Infinity, to = -Infinity;
  for (const panel of panels) {
    const shift = zero(panel, step);
    for (const bar of panel.bars) {
      from = Math.min(from, bar[4] - shift);
      to = Math.max(to, bar[5] - shift);
    }
  }
  return from < to ? [from, to] : [0, 1];
}

/** What is shown first: a few steps once the run has settled. */
function opening(panels, step) {
  const [from, to] = extent(panels, step);
  const lengths = panels.flatMap((panel) => {
    const all = Object.entries(panel.begins).filter(([k]) => Number(k) >= step).map(([, begin]) => begin);
    return all.length > 1 ? [(all[all.length - 1] - all[0]) / (all.length - 1)] : [];
  });
  if (!lengths.length) return [from, to];
  const length = Math.max(...lengths);
  return [Math.max(from, -0.3 * length), Math.min(to, 1.4 * length)];
}

/** A text that fits into so many pixels, "" where none does. */
function fitting(texts, width) {
  return texts.find((text) => text.length * 6.4 + 8 <= width) || "";
}

/** An op by the first letters of its words: what fits into a narrow bar. */
function initials(name) {
  return name.split("_").map((word) => word[0] || "").join("");
}

function hue(step) {
  return ((step % HUES) + HUES) % HUES;
}

function common(panels) {
  const sets = panels.map((panel) => Object.keys(panel.begins).map(Number));
  return sets.length ? sets[0].filter((step) => sets.every((set) => set.includes(step))) : [];
}

if (typeof module !== "undefined") module.exports = { said, ticks, zero, extent, opening, fitting, initials, hue, common };
if (typeof document !== "undefined") start(JSON.parse(document.getElementById("data").textContent));

// -- the page --

function start(panels) {
  const $ = (id) => document.getElementById(id);
  const chart = $("chart"), tip = $("tip");
  const steps = common(panels);
  const settled = Math.max(...panels.map((panel) => (panel.origin === "measured" ? 2 : 1)));
  const state = {
    align: steps.find((step) => step >= settled) ?? steps[0] ?? 0,
    from: 0, to: 1, chosen: null, near: null, asked: false,
  };
  panels.forEach((panel, index) => {
    panel.index = index;
    panel.byRow = panel.rows.map(() => []);
    panel.bars.forEach((bar, at) => panel.byRow[bar[0]].push(at));
    panel.byRow.forEach((row) => row.sort((a, b) => panel.bars[a][4] - panel.bars[b][4] || panel.bars[a][5] - panel.bars[b][5]));
    panel.touching = new Map();
    panel.arrows.forEach((arrow, at) => [arrow[0], arrow[1]].forEach((bar) => {
      if (!panel.touching.has(bar)) panel.touching.set(bar, []);
      panel.touching.get(bar).push(at);
    }));
    const box = document.createElement("section");
    const head = document.createElement("h2");
    head.textContent = panel.origin;
    const small = document.createElement("small");
    small.textContent = [panel.pipeline ? `under ${panel.pipeline}` : "as written", panel.note,
      panel.dropped ? `the oldest ${panel.dropped} were not kept` : ""].filter(Boolean).join(" · ");
    head.append(small);
    panel.svg = element("svg", { role: "group", "aria-label": `${panel.program}, ${panel.origin}` });
    box.append(head, panel.svg);
    chart.append(box);
  });
  figures(panels, $("figures"));
  table(panels, $("table"));
  legend($("legend"), panels);
  document.querySelectorAll(".only-two").forEach((one) => { one.hidden = panels.length < 2; one.style.display = panels.length < 2 ? "none" : ""; });
  steps.forEach((step) => $("align").append(new Option(step, step, step === state.align, step === state.align)));
  show(opening(panels, state.align));

  function show([from, to]) {
    const [first, last] = extent(panels, state.align), whole = last - first;
    const wide = Math.min(Math.max(to - from, whole * 1e-7), whole * 1.06);
    let begin = from + (to - from - wide) / 2;
    begin = Math.min(Math.max(begin, first - whole * 0.03), last + whole * 0.03 - wide);
    state.from = begin;
    state.to = begin + wide;
    ask();
  }

  function ask() {
    if (state.asked) return;
    state.asked = true;
    requestAnimationFrame(() => { state.asked = false; draw(); });
  }

  function width() {
    return Math.max(320, chart.clientWidth);
  }

  function scale() {
    return (width() - GUTTER - EDGE) / (state.to - state.from);
  }

  function draw() {
    panels.forEach((panel) => drawPanel(panel, state, width(), scale(), $("arrows").checked, $("calls").checked));
  }

  // zoom and pan
  function zoom(factor, centre = (state.from + state.to) / 2) {
    show([centre - (centre - state.from) * factor, centre + (state.to - centre) * factor]);
  }
  function pan(share) {
    const by = share * (state.to - state.from);
    show([state.from + by, state.to + by]);
  }
  function moment(event) {
    const left = chart.getBoundingClientRect().left;
    return state.from + (event.clientX - left - GUTTER) / scale();
  }
  chart.addEventListener("wheel", (event) => {
    event.preventDefault();
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const by = (event.deltaX || event.deltaY) / (event.deltaMode ? 15 : 500);
    if (sideways) pan(by);
    else zoom(Math.exp((event.deltaY / (event.deltaMode ? 3 : 100)) * 0.18), moment(event));
  }, { passive: false });
  let drag = null;
  chart.addEventListener("pointerdown", (event) => {
    if (event.button || event.clientX - chart.getBoundingClientRect().left < GUTTER) return;
    drag = { x: event.clientX, from: state.from, to: state.to, moved: false };
  });
  window.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = (drag.x - event.clientX) / scale();
    if (Math.abs(drag.x - event.clientX) > 3) drag.moved = true;
    if (drag.moved) {
      tip.hidden = true;
      panels.forEach((panel) => panel.svg.classList.add("held"));
      show([drag.from + by, drag.to + by]);
    }
  });
  window.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    panels.forEach((panel) => panel.svg.classList.remove("held"));
    if (was && !was.moved) choose(hit(event.target));
  });
  chart.addEventListener("dblclick", (event) => {
    const found = hit(event.target);
    if (!found) return zoom(0.4, moment(event));
    const shift = zero(found.panel, state.align), step = found.panel.bars[found.bar][2];
    const mine = found.panel.bars.filter((bar) => bar[2] === step && found.panel.rows[bar[0]].device);
    const bars = mine.length ? mine : [found.panel.bars[found.bar]];
    const from = Math.min(...bars.map((bar) => bar[4])) - shift, to = Math.max(...bars.map((bar) => bar[5])) - shift;
    return show([from - 0.06 * (to - from), to + 0.06 * (to - from)]);
  });

  // pointing and choosing
  function hit(target) {
    const mark = target.closest && target.closest("[data-bar]");
    return mark ? { panel: panels[Number(mark.dataset.panel)], bar: Number(mark.dataset.bar) } : null;
  }
  chart.addEventListener("pointermove", (event) => {
    if (drag && drag.moved) return;
    const gap = event.target.closest && event.target.closest("[data-gap]");
    const found = hit(event.target);
    if (gap) fill(tip, [[gap.dataset.gap, []]]);
    else if (found) fill(tip, [facts(found.panel, found.bar)]);
    tip.hidden = !gap && !found;
    if (!tip.hidden) place(tip, event.clientX, event.clientY);
    const near = found ? `${found.panel.index}/${found.bar}` : null;
    if (near !== state.near) { state.near = near; ask(); }
  });
  chart.addEventListener("pointerleave", () => { tip.hidden = true; state.near = null; ask(); });
  function choose(found) {
    state.chosen = found ? `${found.panel.index}/${found.bar}` : null;
    if (found) {
      const [title, pairs] = facts(found.panel, found.bar);
      $("said").textContent = `${title}: ${pairs.map(([name, value]) => `${name} ${value}`.trim()).join("; ")}`;
      const bar = found.panel.bars[found.bar], shift = zero(found.panel, state.align);
      if (bar[5] - shift < state.from || bar[4] - shift > state.to) {
        const half = (state.to - state.from) / 2, middle = (bar[4] + bar[5]) / 2 - shift;
        show([middle - half, middle + half]);
      }
    } else $("said").textContent = "";
    ask();
  }
  function current() {
    if (!state.chosen) return null;
    const [panel, bar] = state.chosen.split("/").map(Number);
    return { panel: panels[panel], bar };
  }
  function along(by) {
    const now = current();
    if (!now) return choose(firstSeen(panels, state));
    const row = now.panel.byRow[now.panel.bars[now.bar][0]], next = row[row.indexOf(now.bar) + by];
    return next === undefined ? undefined : choose({ panel: now.panel, bar: next });
  }
  function across(by) {
    const now = current();
    if (!now) return choose(firstSeen(panels, state));
    const places = panels.flatMap((panel) => panel.rows.map((_, row) => ({ panel, row }))).filter(({ panel, row }) => panel.byRow[row].length);
    const bar = now.panel.bars[now.bar];
    const at = places.findIndex((one) => one.panel === now.panel && one.row === bar[0]) + by;
    if (!places[at]) return undefined;
    const { panel, row } = places[at], when = bar[4] - zero(now.panel, state.align) + zero(panel, state.align);
    const away = (one) => Math.max(panel.bars[one][4] - when, when - panel.bars[one][5], 0);
    return choose({ panel, bar: panel.byRow[row].reduce((best, one) => (away(one) < away(best) ? one : best)) });
  }
  const KEYS = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7),
    0: () => show(extent(panels, state.align)), "[": () => along(-1), "]": () => along(1),
    ArrowUp: () => across(-1), ArrowDown: () => across(1), Escape: () => choose(null),
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  $("in").onclick = () => zoom(0.6);
  $("out").onclick = () => zoom(1 / 0.6);
  $("all").onclick = () => show(extent(panels, state.align));
  $("arrows").onchange = $("calls").onchange = ask;
  $("align").onchange = (event) => {
    state.align = Number(event.target.value);
    show(opening(panels, state.align));
  };
  new ResizeObserver(ask).observe(chart);
}

function firstSeen(panels, state) {
  for (const panel of panels) {
    const shift = zero(panel, state.align);
    const seen = panel.bars.findIndex((bar) => bar[4] - shift >= state.from && bar[5] > bar[4]);
    if (seen >= 0) return { panel, bar: seen };
  }
  return null;
}

// -- drawing --

function element(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function drawPanel(panel, state, width, scale, arrows, calls) {
  const shift = zero(panel, state.align);
  const view = {
    panel, shift, scale, width, left: GUTTER, right: width - EDGE,
    x: (seconds) => GUTTER + (seconds - shift - state.from) * scale,
    tops: [], from: state.from + shift, to: state.to + shift, state,
  };
  let top = AXIS + STEPS;
  panel.rows.forEach((row) => { view.tops.push(top); top += ROW + (row.device && row.name === "trainer" ? BELOW : 0); });
  const height = top + 4, svg = panel.svg;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren(definitions(panel.index));
  const inside = element("g", { "clip-path": `url(#clip${panel.index})` });
  svg.querySelector("clipPath rect").setAttribute("width", view.right - GUTTER);
  svg.querySelector("clipPath rect").setAttribute("height", height);
  drawGround(svg, inside, view, height);
  drawGaps(inside, view);
  drawBars(inside, view);
  drawArrows(inside, view, arrows, calls);
  svg.append(inside);
  panel.rows.forEach((row, at) => {
    const shown = row.device ? (panel.rows.some((one) => !one.device && one.name === row.name) ? `${row.name} (device)` : row.name) : row.name;
    svg.append(element("text", { x: 0, y: view.tops[at] + ROW / 2 + 4, class: row.device ? "device" : "" }, shown.length > 17 ? `${shown.slice(0, 16)}…` : shown));
  });
}

function definitions(index) {
  const made = element("defs");
  const clip = element("clipPath", { id: `clip${index}` });
  clip.append(element("rect", { x: GUTTER, y: 0, width: 1, height: 1 }));
  const hatch = element("pattern", { id: `hatch${index}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  hatch.append(element("rect", { width: 2, height: 6, style: "fill:var(--hatch)" }));
  made.append(clip, hatch);
  for (const [name, colour] of [["wait", "--wait"], ["call", "--link"], ["near", "--focus"]]) {
    const head = element("marker", { id: `${name}${index}`, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", markerUnits: "userSpaceOnUse" });
    head.append(element("path", { d: "M0 0.5 L8 4 L0 7.5 z", style: `fill:var(${colour})` }));
    made.append(head);
  }
  return made;
}

function drawGround(svg, inside, view, height) {
  const { panel, x } = view;
  panel.rows.forEach((_, at) => svg.append(element("rect", { class: "back", x: GUTTER, y: view.tops[at] + 1, width: view.right - GUTTER, height: ROW - 2, rx: 3 })));
  const span = view.state.to - view.state.from;
  for (const tick of ticks(view.state.from, view.state.to, (view.right - GUTTER) / 110)) {
    const at = x(tick + view.shift);
    inside.append(element("line", { class: "tick", x1: at, x2: at, y1: AXIS - 6, y2: height }));
    if (at > GUTTER + 12 && at < view.right - 26)
      inside.append(element("text", { class: "axis", x: at, y: 12, "text-anchor": "middle" }, Math.abs(tick) < span * 1e-9 ? "0" : said(tick)));
  }
  let free = -Infinity;
  for (const [step, begin] of Object.entries(panel.begins)) {
    const at = x(begin), text = `step ${step}`;
    if (at < GUTTER - 60 || at > view.right) continue;
    inside.append(element("line", { class: "begin", x1: at, x2: at, y1: AXIS, y2: height, style: `stroke:var(--e${hue(Number(step))})` }));
    if (at >= free) {
      inside.append(element("text", { class: "step", x: at + 4, y: AXIS + 11, style: `fill:var(--e${hue(Number(step))})` }, text));
      free = at + text.length * 7 + 6;
    }
  }
}

function drawGaps(inside, view) {
  const taken = [], seen = view.panel.gaps.filter(([, start, end]) => end >= view.from && start <= view.to);
  for (const [row, start, end, boundary] of seen.sort((a, b) => b[2] - b[1] - (a[2] - a[1]))) {
    const a = Math.max(view.x(start), GUTTER - 2), b = Math.min(view.x(end), view.right + 2), top = view.tops[row] + (ROW - BAR) / 2;
    if (view.x(end) - view.x(start) < 1.5) continue;
    const words = said(end - start), where = boundary === null ? "" : `, at the boundary behind step ${boundary}`;
    const group = element("g", { class: "idle", "data-gap": `idle for ${words}${where}` });
    group.append(element("title", {}, `idle for ${words}${where}`));
    group.append(element("rect", { x: a, y: top, width: Math.max(1, b - a), height: BAR, rx: 2 }));
    inside.append(group);
    const label = b - a > 76 || boundary !== null ? `${words} idle` : words, long = label.length * 6.1, middle = (a + b) / 2;
    const at = Math.min(Math.max(middle - long / 2, GUTTER), view.right - long);
    if ((boundary !== null || b - a > 5) && taken.every(([from, to]) => at > to + 8 || at + long < from - 8)) {
      inside.append(element("text", { class: "gap", x: at, y: top + BAR + 13 }, label));
      taken.push([at, at + long]);
    }
  }
}

function drawBars(inside, view) {
  const { panel } = view;
  const near = new Set([view.state.near, view.state.chosen].filter(Boolean).map((one) => one.split("/").map(Number))
    .filter(([index]) => index === panel.index).flatMap(([, bar]) => (panel.touching.get(bar) || []).flatMap((at) => panel.arrows[at].slice(0, 2))));
  panel.byRow.forEach((row, at) => {
    const top = view.tops[at] + (ROW - BAR) / 2;
    let last = -Infinity;
    for (const index of row) {
      const bar = panel.bars[index];
      if (bar[4] > view.to) break;
      if (bar[5] < view.from) continue;
      if (typeof bar[6] === "number" && bar[6] < bar[4] && view.x(bar[4]) - view.x(bar[6]) > 3)
        inside.append(element("line", { class: "held-up", x1: view.x(bar[6]), x2: view.x(bar[4]), y1: top + BAR / 2, y2: top + BAR / 2 }));
      const a = view.x(bar[4]), b = view.x(bar[5]), key = `${panel.index}/${index}`;
      if (b - a < 1 && a - last < 1 && key !== view.state.chosen) continue;
      last = Math.max(a, b);
      inside.append(drawBar(view, index, a, b, top, near.has(index)));
    }
  });
}

function drawBar(view, index, a, b, top, near) {
  const { panel } = view, bar = panel.bars[index], chosen = view.state.chosen === `${panel.index}/${index}`;
  const group = element("g", { class: `mark${chosen ? " chosen" : ""}${near ? " near" : ""}`, "data-panel": panel.index, "data-bar": index, role: "img" });
  const left = Math.max(a, GUTTER - 4), wide = Math.max(1.5, Math.min(b, view.right + 4) - left), colour = hue(bar[2]);
  const [title, pairs] = facts(panel, index);
  group.append(element("title", {}, [title, ...pairs.map(([name, value]) => `${name}: ${value}`)].join("\n")));
  group.append(element("rect", { class: "fill", x: left, y: top, width: wide, height: BAR, rx: Math.min(3, wide / 3), style: `fill:var(--s${colour});stroke:var(--e${colour})` }));
  const wait = panel.waits[index];
  if (wait && view.x(wait[1]) - view.x(wait[0]) > 2) {
    const from = Math.max(view.x(wait[0]), left), to = Math.min(view.x(wait[1]), left + wide);
    if (to > from) group.append(element("rect", { x: from, y: top + 1, width: to - from, height: BAR - 2, fill: `url(#hatch${panel.index})` }));
  }
  const name = panel.ops[bar[1]][0].replace(/\.first(\..*)?$/, ""), micro = bar[3] === null ? "" : ` ${bar[3]}`, what = bar[6] && typeof bar[6] === "string" ? ` ${bar[6]}` : "";
  const seen = Math.max(left, GUTTER), room = Math.min(left + wide, view.right) - seen;
  const text = fitting([`${name}${micro}${what}`, ...(micro ? [] : [name]), `${initials(name)}${micro}`, micro ? micro.trim() : initials(name)], room);
  if (text) group.append(element("text", { x: seen + room / 2, y: top + BAR / 2 + 4, "text-anchor": "middle", style: `stroke:var(--s${colour})` }, text));
  return group;
}

function drawArrows(inside, view, wanted, calls) {
  const { panel, state } = view;
  const touched = new Set([state.near, state.chosen].filter(Boolean).map((one) => one.split("/").map(Number))
    .filter(([index]) => index === panel.index).flatMap(([, bar]) => panel.touching.get(bar) || []));
  const shown = panel.arrows.map((arrow, at) => ({ arrow, at, near: touched.has(at) })).filter(({ arrow, near }) =>
    arrow[3] >= view.from && arrow[2] <= view.to && (near || (arrow[4] === "call" ? calls : wanted)));
  if (shown.length > MOST_ARROWS) shown.splice(0, shown.length, ...shown.filter(({ near }) => near));
  for (const { arrow, near } of shown.sort((a, b) => a.near - b.near)) drawArrow(inside, view, arrow, near);
}

function drawArrow(inside, view, arrow, near) {
  const { panel } = view, from = panel.bars[arrow[0]], to = panel.bars[arrow[1]];
  const down = view.tops[to[0]] >= view.tops[from[0]], half = (ROW - BAR) / 2;
  const x1 = view.x(arrow[2]), x2 = view.x(arrow[3]);
  const y1 = view.tops[from[0]] + (down ? ROW - half : half), y2 = view.tops[to[0]] + (down ? half : ROW - half);
  const middle = (y1 + y2) / 2, bend = Math.abs(x2 - x1) < 2 ? `L${x2} ${y2}` : `C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`;
  const kind = near ? "near" : arrow[4] === "call" ? "call" : "wait";
  inside.append(element("path", { class: "halo", d: `M${x1} ${y1} ${bend}` }));
  inside.append(element("path", { class: `arrow ${arrow[4]}${near ? " near" : ""}`, d: `M${x1} ${y1} ${bend}`, "marker-end": `url(#${kind}${panel.index})` }));
}

// -- words --

/** What is told of a bar: a title, and names with values. */
function facts(panel, index) {
  const bar = panel.bars[index], [op, place, code] = panel.ops[bar[1]], wait = panel.waits[index];
  const what = typeof bar[6] === "string" && bar[6] ? ` (${bar[6]})` : "";
  const pairs = [["on", `${panel.rows[bar[0]].name}${panel.rows[bar[0]].device ? ", a device" : ", a lane"}`], ["step", bar[2]]];
  if (bar[3] !== null) pairs.push(["micro-batch", bar[3]]);
  pairs.push(["took", said(bar[5] - bar[4])]);
  if (wait && wait[1] - wait[0] > 0) pairs.push(["of it waiting", said(wait[1] - wait[0])]);
  if (typeof bar[6] === "number" && bar[6] < bar[4]) pairs.push(["held up", said(bar[4] - bar[6])]);
  for (const at of panel.touching.get(index) || []) {
    const [source, target, , , kind, why] = panel.arrows[at];
    if (target === index && kind !== "call") pairs.push(["waits for", `${barName(panel, source)}${why ? ` (${why})` : ""}`]);
    if (source === index && kind === "lane") pairs.push(["lets go on", barName(panel, target)]);
  }
  pairs.push(["from", `${said(bar[4])} to ${said(bar[5])} of the run`]);
  if (place) pairs.push(["line", place]);
  if (code) pairs.push(["", code]);
  return [`${op}${what}`, pairs];
}

function barName(panel, index) {
  const bar = panel.bars[index];
  return `${panel.ops[bar[1]][0]}${bar[3] === null ? "" : ` ${bar[3]}`} of step ${bar[2]}`;
}

function fill(tip, [[title, pairs]]) {
  const head = document.createElement("b"), list = document.createElement("dl");
  head.textContent = title;
  for (const [name, value] of pairs) {
    const dt = document.createElement("dt"), dd = document.createElement("dd"), inner = document.createElement(name ? "span" : "code");
    dt.textContent = name;
    inner.textContent = value;
    dd.append(inner);
    list.append(dt, dd);
  }
  tip.replaceChildren(head, list);
}

function place(tip, x, y) {
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(6, y - box.height - 12) : y + 18}px`;
}

function figures(panels, into) {
  const names = [...new Set(panels.flatMap((panel) => panel.figures.map(([name]) => name)))];
  into.append(grid(["", ...names], panels.map((panel) => [panel.origin, ...names.map((name) => (panel.figures.find(([one]) => one === name) || ["", "–"])[1])])));
}

function table(panels, into) {
  const steps = [...new Set(panels.flatMap((panel) => Object.keys(panel.begins).map(Number)))].sort((a, b) => a - b);
  const length = (panel, step) => (step in panel.begins && step + 1 in panel.begins ? said(panel.begins[step + 1] - panel.begins[step]) : "–");
  const idle = (panel, step) => (step in panel.idle ? said(panel.idle[step]) : "–");
  const heads = panels.flatMap((panel) => [`${panel.origin}: takes`, `${panel.origin}: trainer idle behind it`]);
  into.append(grid(["step", ...heads], steps.map((step) => [step, ...panels.flatMap((panel) => [length(panel, step), idle(panel, step)])])));
}

function grid(heads, rows) {
  const made = document.createElement("table"), head = made.createTHead().insertRow(), body = made.createTBody();
  heads.forEach((text) => { const cell = document.createElement("th"); cell.scope = "col"; cell.textContent = text; head.append(cell); });
  rows.forEach((row) => {
    const line = body.insertRow();
    row.forEach((text, at) => { const cell = document.createElement(at ? "td" : "th"); if (!at) cell.scope = "row"; cell.textContent = text; line.append(cell); });
  });
  return made;
}

function legend(list, panels) {
  const entry = (draw, text) => {
    const item = document.createElement("li"), svg = element("svg", { width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" });
    draw(svg);
    item.append(svg, text);
    list.append(item);
  };
  entry((svg) => [0, 1, 2].forEach((n) => svg.append(element("rect", { x: n * 10, y: 1, width: 9, height: 12, rx: 2, style: `fill:var(--s${n});stroke:var(--e${n})` }))), "steps");
  entry((svg) => {
    svg.append(definitions("L"));
    svg.append(element("rect", { x: 1, y: 1, width: 28, height: 12, rx: 2, style: "fill:var(--s0);stroke:var(--e0)" }));
    svg.append(element("rect", { x: 1, y: 2, width: 28, height: 10, fill: "url(#hatchL)" }));
  }, "waits within a call");
  if (panels.some((panel) => panel.arrows.some((arrow) => arrow[4] === "lane")))
    entry((svg) => svg.append(element("line", { class: "held-up", x1: 1, x2: 29, y1: 7, y2: 7 })), "held up by another lane");
  entry((svg) => svg.append(element("path", { class: "arrow", d: "M2 7 L27 7", "marker-end": "url(#waitL)" })), "what was waited for");
  entry((svg) => {
    const group = element("g", { class: "idle" });
    group.append(element("rect", { x: 1, y: 1, width: 28, height: 12, rx: 2 }));
    svg.append(group);
  }, "trainer idle");
  entry((svg) => svg.append(element("text", { x: 15, y: 11, "text-anchor": "middle" }, "fb 3")), "fwd_bwd of micro-batch 3");
}
