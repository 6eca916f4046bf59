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
      place.replaceChildren(CHARTS[figure.dataset.chart](data, place.clientWidth, place.clientHeight, figure.dataset));
    }
  }
}

function groups(data) {
  const names = [...new Set(data.points.map((point) => point.group))];
  return {
    color: { domain: names, range: names.map((_, i) => COLOURS[i % COLOURS.length]), legend: false },
    symbol: { domain: names, range: names.map((_, i) => SYMBOLS[i % SYMBOLS.length]), legend: names.length > 1 && names.length < 9 },
  };
}

const plain = { style: { background: "transparent", fontSize: "12px" }, marginLeft: 54 };

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

export const CHARTS = { scatter, residuals };

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
});
