"use strict";
// Draws the charts of an experiment's page from the data in it.
const data = JSON.parse(document.getElementById("data").textContent);
const said = document.getElementById("said");
const digits = d3.format(".4~g");
const error = d3.format(".2~g");
const count = d3.format(",");
const color = (place) => (data.trainings[place].baseline ? "var(--faint)" : `var(--line${place % 8})`);
const named = (place) => data.trainings.length > 1 ? `${data.trainings[place].name}: ` : "";

function points(column) {
  return column.series.flatMap((one) => one.steps.map((step, i) => ({
    training: one.training, step, value: one.values[i], error: one.errors[i],
    level: one.level && one.level[i], low: one.low && one.low[i], high: one.high && one.high[i],
  })));
}

function told(point) {
  const parts = [`${named(point.training)}step ${count(point.step)}`];
  if (point.value !== null) {
    parts.push(digits(point.value) + (point.error ? ` \u00b1${error(point.error)}` : ""));
  }
  if (point.low != null) parts.push(`smoothed ${digits(point.level)}`, `95 %: ${digits(point.low)} to ${digits(point.high)}`);
  return parts;
}

function marks(column, all) {
  const seen = all.filter((p) => p.value !== null);
  const smooth = all.filter((p) => p.low != null);
  const changes = column.series.flatMap((one) => one.changes.map((change) => ({...change, training: one.training})));
  const alarms = data.alarms.filter((alarm) => alarm.what === column.name);
  const line = {x: "step", z: "training", stroke: (p) => color(p.training)};
  return [
    Plot.areaY(smooth, {x: "step", y1: "low", y2: "high", z: "training", fill: (p) => color(p.training), fillOpacity: 0.2}),
    Plot.ruleX(changes, {x: "step", stroke: (c) => color(c.training), strokeDasharray: "2 3"}),
    Plot.ruleX(alarms, {x: "step", stroke: "var(--alarm)", strokeWidth: 1.5}),
    Plot.text(alarms, {x: "step", frameAnchor: "bottom", text: "kind", textAnchor: "end", dx: -4, dy: -2, fill: "var(--alarm)"}),
    smooth.length
      ? [Plot.line(smooth, {...line, y: "level", strokeWidth: 1.8}),
         Plot.dot(seen, {x: "step", y: "value", r: 1.6, fill: (p) => color(p.training), fillOpacity: 0.55})]
      : [Plot.line(seen, {...line, y: "value", strokeWidth: 1.2, strokeDasharray: column.dashed ? "4 3" : null}),
         Plot.dot(seen, {x: "step", y: "value", r: 2, fill: (p) => color(p.training)})],
    Plot.ruleX(seen, Plot.pointerX({x: "step", stroke: "currentColor", strokeOpacity: 0.35})),
    Plot.tip(seen, Plot.pointerX({x: "step", y: "value", title: (p) => told(p).join("\n"), fill: "var(--panel)", stroke: "var(--line)"})),
  ];
}

function draw(figure) {
  const column = data.columns[figure.dataset.column];
  const all = points(column);
  const place = figure.querySelector(".plot");
  const width = Math.max(220, Math.floor(place.clientWidth));
  if (+figure.dataset.width === width) return;
  figure.dataset.width = width;
  const [low, high] = d3.extent(all, (p) => p.value);
  const ticks = Math.max(2, Math.floor(width / 90));
  const chart = Plot.plot({
    width, height: figure.classList.contains("wide") ? 300 : 170, marginLeft: 46, marginRight: 14, marginBottom: 24, marginTop: 10,
    ariaLabel: column.summary,
    style: {background: "none", color: "inherit", fontSize: "11px", fontFamily: "inherit", overflow: "visible"},
    x: {label: null, domain: data.domain, tickFormat: data.domain[1] < 1e4 ? ",~f" : "~s", ticks},
    y: {label: null, grid: true, nice: true, ticks: 5, tickFormat: high >= 1e4 ? "~s" : low === high ? "~g" : undefined, zero: column.zero},
    marks: marks(column, all),
  });
  const svg = chart.tagName === "svg" ? chart : chart.querySelector("svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("tabindex", "0");
  walk(svg, chart.scale("x"), chart.scale("y"), all.filter((p) => p.value !== null), width);
  place.replaceChildren(chart);
}

// Arrow keys walk along the points, as the pointer does.
function walk(svg, x, y, all, width) {
  const ordered = all.sort((a, b) => a.step - b.step);
  let at = ordered.length;
  svg.addEventListener("keydown", (event) => {
    const go = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: ordered.length - 1}[event.key];
    if (go === undefined || !ordered.length) return;
    event.preventDefault();
    at = Math.min(ordered.length - 1, Math.max(0, go));
    const box = svg.getBoundingClientRect(), scale = box.width / width, point = ordered[at];
    svg.dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + x.apply(point.step) * scale, clientY: box.top + y.apply(point.value) * scale,
      bubbles: true, pointerType: "mouse",
    }));
    said.textContent = told(point).join(", ");
  });
  svg.addEventListener("blur", () => svg.dispatchEvent(new PointerEvent("pointerleave", {pointerType: "mouse"})));
}

function cell(row, text, tag = "td") {
  const made = row.appendChild(document.createElement(tag));
  if (tag === "th") made.scope = "col";
  made.textContent = text;
  made.className = "n";
}

function table(details) {
  const column = data.columns[details.closest("figure").dataset.column];
  const several = data.trainings.length > 1;
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const words of [...(several ? ["training"] : []), "step", "score", "\u00b1", "smoothed", "95 %"]) cell(head, words, "th");
  const body = made.createTBody();
  for (const p of points(column)) {
    const row = body.insertRow();
    if (several) cell(row, data.trainings[p.training].name);
    cell(row, count(p.step));
    cell(row, p.value === null ? "" : digits(p.value));
    cell(row, p.error ? error(p.error) : "");
    cell(row, p.low == null ? "" : digits(p.level));
    cell(row, p.low == null ? "" : `${digits(p.low)} to ${digits(p.high)}`);
  }
  details.querySelector(".scroll").replaceChildren(made);
}

const figures = [...document.querySelectorAll("figure[data-column]")];
// What is in view is drawn with the page, and the rest when it comes into view.
for (const f of figures) if (f.getBoundingClientRect().top < innerHeight) draw(f);
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, {rootMargin: "600px"});
for (const figure of figures) {
  seen.observe(figure);
  const details = figure.querySelector("details");
  details.addEventListener("toggle", () => { if (details.open) table(details); });
}
let waiting = 0;
new ResizeObserver(() => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => { for (const f of figures) if (f.dataset.width) draw(f); });
}).observe(document.body);
addEventListener("beforeprint", () => figures.forEach(draw));
const find = document.getElementById("find");
find.addEventListener("input", () => {
  const words = find.value.trim().toLowerCase();
  let found = 0;
  for (const section of document.querySelectorAll("#sets section")) {
    for (const figure of section.querySelectorAll("figure")) {
      const column = data.columns[figure.dataset.column];
      figure.hidden = !`${column.name} ${column.group}`.toLowerCase().includes(words);
    }
    const shown = section.querySelectorAll("figure:not([hidden])").length;
    section.hidden = !shown;
    found += shown;
  }
  document.getElementById("none").hidden = found > 0;
  said.textContent = words ? `${count(found)} found` : "";
});
