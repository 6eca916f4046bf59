// Charts of Observable Plot, drawn from the JSON that the answer carries; drawn again when the answer, the theme or the width changes.
/* global Plot */

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#7a3db8", "#b00020"];
const SYMBOLS = ["circle", "triangle", "square", "diamond", "star", "cross", "wye", "asterisk"];
const si = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" });

/** Draw every chart of the answer. */
function draw() {
  for (const source of document.querySelectorAll("#answer script.points")) {
    const data = JSON.parse(source.textContent);
    for (const figure of source.parentElement.querySelectorAll("[data-chart]")) {
      const place = figure.querySelector(".plot");
      place.replaceChildren(labelled(CHARTS[figure.dataset.chart](data, place.clientWidth, place.clientHeight, figure.dataset), figure));
    }
  }
}

/** A chart as one picture with a name: Plot names its inner groups, which a screen reader cannot use. */
export function labelled(chart, figure) {
  for (const svg of chart.matches("svg") ? [chart] : chart.querySelectorAll("svg")) {
    for (const inner of svg.querySelectorAll("g[aria-label]")) inner.removeAttribute("aria-label");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", figure.querySelector("figcaption")?.textContent ?? "chart");
  }
  return chart;
}

function groups(data) {
  const names = [...new Set(data.points.map((point) => point.group))];
  return {
    color: { domain: names, range: names.map((_, i) => COLOURS[i % COLOURS.length]), legend: false },
    symbol: { domain: names, range: names.map((_, i) => SYMBOLS[i % SYMBOLS.length]), legend: names.length > 1 && names.length < 9 },
  };
}

const plain = { style: { background: "transparent", fontSize: "12px" }, marginLeft: 54, marginBottom: 42 };

function scatter(data, width, height) {
  const values = data.points.flatMap((point) => [point.measured, point.predicted]);
  const [low, high] = [Math.min(...values) / 1.15, Math.max(...values) * 1.15];
  const axis = { type: "log", domain: [low, high], grid: true, tickFormat: (value) => si.format(value), ticks: 5 };
  const band = [{ x: low }, { x: high }];
  return Plot.plot({
    ...plain, width, height, ...groups(data),
    x: { ...axis, label: "measured" },
    y: { ...axis, label: "predicted" },
    marks: [
      Plot.areaY(band, { x: "x", y1: (d) => d.x * 0.9, y2: (d) => d.x * 1.1, fill: "currentColor", fillOpacity: 0.1, clip: true }),
      Plot.line(band, { x: "x", y: "x", stroke: "currentColor", strokeOpacity: 0.5, strokeDasharray: "4 4" }),
      Plot.dot(data.points, {
        x: "measured", y: "predicted", stroke: "group", symbol: "group", r: 3.5, strokeOpacity: 0.85,
        tip: { format: { x: (v) => si.format(v), y: (v) => si.format(v), stroke: false } }, channels: { run: "name" },
      }),
    ],
  });
}

function residuals(data, width, height) {
  const error = (point) => 100 * (point.predicted / point.measured - 1);
  const values = new Set(data.points.map((point) => point[data.axis]));
  return Plot.plot({
    ...plain, width, height, ...groups(data),
    x: { type: values.size > 1 ? "log" : "linear", label: data.words, tickFormat: (value) => si.format(value), ticks: 6 },
    y: { label: "predicted over measured, %", grid: true, tickFormat: "+.0f" },
    marks: [
      Plot.ruleY([0], { strokeOpacity: 0.6 }),
      Plot.ruleY([-10, 10], { strokeOpacity: 0.35, strokeDasharray: "3 4" }),
      Plot.dot(data.points, {
        x: data.axis, y: error, stroke: "group", symbol: "group", r: 3.5, strokeOpacity: 0.85, channels: { run: "name" },
        tip: { format: { x: (v) => si.format(v), y: (v) => `${v.toFixed(1)}%`, stroke: false } },
      }),
    ],
  });
}

/** One figure along one axis: a line where values are numbers, bars where they are names. */
function curve(data, width, height, { metric }) {
  const title = data.metrics.find((each) => each.name === metric).title;
  const axis = data.axes[0];
  const rows = data.points.map((point) => ({ ...point, x: axis.ordered ? point.values[0] : point.labels[0] }));
  const fitting = rows.filter((row) => row[metric] !== null && row.fits);
  // a logarithmic scale returns 8 as 7.999...
  const label = (value) => rows.find((row) => row.x === value || Math.abs(row.x / value - 1) < 1e-6)?.labels[0] ?? "";
  const tip = { format: { x: label, y: (v) => si.format(v) } };
  const y = { label: null, grid: true, zero: true, tickFormat: (value) => si.format(value), ticks: 5 };
  if (!axis.ordered) {
    return Plot.plot({
      ...plain, width, height, y, x: { type: "band", label: axis.name, domain: rows.map((row) => row.x) },
      marks: [Plot.barY(fitting, { x: "x", y: metric, fill: COLOURS[0], tip, channels: { layout: "layout" } }), Plot.ruleY([0])],
    });
  }
  const fails = rows.filter((row) => !row.fits);
  return Plot.plot({
    ...plain, width, height, y, ariaLabel: title,
    x: { type: "log", label: axis.name, domain: [rows[0].x / 1.1, rows.at(-1).x * 1.1], ticks: rows.map((row) => row.x), tickFormat: label },
    marks: [
      Plot.ruleY([0]),
      axis.here ? Plot.ruleX([axis.here], { strokeDasharray: "3 4", strokeOpacity: 0.6 }) : null,
      Plot.lineY(fitting, { x: "x", y: metric, stroke: COLOURS[0], strokeWidth: 2 }),
      Plot.dot(fitting, { x: "x", y: metric, fill: COLOURS[0], r: 4, tip, channels: { layout: "layout" } }),
      Plot.text(fails, { x: "x", frameAnchor: "bottom", dy: -6, text: () => "✕", title: "layout", fillOpacity: 0.7 }),
    ],
  });
}

/** One figure over two axes, with its value in every cell. */
function heat(data, width, height) {
  const [rows, columns] = [0, 1].map((i) => [...new Set(data.points.map((point) => point.labels[i]))]);
  const better = data.metrics.find((metric) => metric.name === data.chosen).better;
  const cells = data.points.map((point) => ({ ...point, y: point.labels[0], x: point.labels[1], value: point.fits ? point[data.chosen] : null }));
  const known = cells.filter((cell) => cell.value !== null);
  const best = known.reduce((a, b) => ((better === "more" ? b.value > a.value : b.value < a.value) ? b : a), known[0]);
  const logs = known.map((cell) => Math.log(Math.max(cell.value, 1e-12)));
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const dark = (cell) => (Math.log(Math.max(cell.value, 1e-12)) - low) / (high - low || 1) > 0.55;
  return Plot.plot({
    ...plain, width, height, marginLeft: 80, padding: 0.04,
    x: { label: data.axes[1].name, domain: columns },
    y: { label: data.axes[0].name, domain: [...rows].reverse() },
    color: { type: "linear", domain: [low, high], range: ["#e3edf9", "#0a4ea8"], interpolate: "hcl" },
    marks: [
      Plot.cell(cells.filter((cell) => cell.value === null), { x: "x", y: "y", fill: "currentColor", fillOpacity: 0.06, title: "layout" }),
      Plot.cell(known, { x: "x", y: "y", fill: (cell) => Math.log(Math.max(cell.value, 1e-12)), tip: true, channels: { layout: "layout" }, title: (cell) => `${cell.layout}\n${si.format(cell.value)}` }),
      Plot.text(known, { x: "x", y: "y", text: (cell) => si.format(cell.value) + (cell === best ? " ★" : ""), fill: (cell) => (dark(cell) ? "#ffffff" : "#10151c"), fontWeight: (cell) => (cell === best ? 700 : 400), pointerEvents: "none" }),
      Plot.text(cells.filter((cell) => cell.value === null), { x: "x", y: "y", text: () => "–", fillOpacity: 0.6 }),
    ],
  });
}

/** The front of serving: fetched after the page, since it computes every number of users. */
async function front(figure) {
  const place = figure.querySelector(".plot");
  let data;
  try {
    const reply = await fetch(figure.dataset.front);
    if (!reply.ok) throw new Error((await reply.json()).error);
    data = await reply.json();
  } catch (error) {
    place.textContent = error instanceof TypeError ? "The server does not answer." : error.message;
    return;
  }
  if (!place.isConnected) return;
  const best = data.points.filter((point) => point.front).sort((a, b) => a.each - b.each);
  const scale = { type: "log", grid: true, tickFormat: (value) => si.format(value), ticks: 5 };
  const near = (a, b) => Math.abs(Math.log(a.each / b.each)) < 0.5 && Math.abs(Math.log(a.all / b.all)) < 0.12;
  const named = best.reduce((kept, point) => (kept.some((other) => near(point, other)) ? kept : [...kept, point]), []);
  place.replaceChildren(labelled(Plot.plot({
    ...plain, width: place.clientWidth, height: place.clientHeight, marginRight: 90, marginTop: 36,
    x: { ...scale, label: "tokens/s of each request" },
    y: { ...scale, label: "tokens/s of a device, all requests" },
    marks: [
      Plot.dot(data.points.filter((point) => !point.front), { x: "each", y: "all", stroke: "currentColor", strokeOpacity: 0.35, r: 3 }),
      Plot.line(best, { x: "each", y: "all", stroke: COLOURS[1], strokeWidth: 2 }),
      Plot.dot(data.points, { x: "each", y: "all", fill: (point) => (point.front ? COLOURS[1] : "transparent"), r: 4.5, tip: { format: { x: (v) => si.format(v), y: (v) => si.format(v), fill: false } }, channels: { layout: "layout", users: "users", "step goes to": "because" } }),
      Plot.text(named, { x: "each", y: "all", text: (point) => `${point.users} · ${point.layout}`, textAnchor: "start", dx: 8, dy: -6 }),
    ],
  }), figure));
}

export const CHARTS = { scatter, residuals, curve, heat };

/** Fill in the scores of the list of tables, one after the other: each takes a while the first time. */
async function scores() {
  for (const row of document.querySelectorAll("#answer [data-score]")) {
    try {
      const reply = await fetch(row.dataset.score);
      const figures = reply.ok ? await reply.json() : {};
      if (!row.isConnected) return;
      for (const cell of row.querySelectorAll("[data-figure]")) cell.textContent = figures[cell.dataset.figure] ?? "–";
    } catch {
      return;
    }
  }
}

let width = innerWidth;
addEventListener("resize", () => {
  if (width !== innerWidth) draw();
  width = innerWidth;
});
document.addEventListener("meshwise:answer", () => {
  draw();
  scores();
  for (const figure of document.querySelectorAll("#answer [data-front]")) front(figure);
});
