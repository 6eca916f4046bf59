// Curves of runs, drawn again as steps arrive (server-sent events).
/* global Plot */
import { labelled } from "./charts.js";

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 4", "1 2"];
const si = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, notation: "compact" });
let runs = [];
let listening = [];

function draw() {
  for (const figure of document.querySelectorAll("[data-run-chart]")) {
    const { runChart: name, predicted } = figure.dataset;
    const place = figure.querySelector(".plot");
    const points = runs.flatMap((run) => run.points.map((point) => ({ ...point, run: run.name })).filter((point) => point[name] !== null));
    const levels = predicted ? runs.filter((run) => run.predicted[predicted]) : [];
    place.replaceChildren(labelled(Plot.plot({
      width: place.clientWidth, height: place.clientHeight, marginLeft: 54, marginBottom: 42, style: { background: "transparent", fontSize: "12px" },
      x: { label: "step", tickFormat: (value) => (Number.isInteger(value) ? String(value) : "") },
      y: { label: null, grid: true, zero: name !== "loss", tickFormat: (value) => si.format(value), ticks: 5 },
      color: { domain: runs.map((run) => run.name), range: COLOURS },
      marks: [
        Plot.ruleY(levels, { y: (run) => run.predicted[predicted], stroke: "name", strokeDasharray: "2 4", strokeWidth: 1.5 }),
        ...runs.map((run, i) => Plot.lineY(points.filter((point) => point.run === run.name), { x: "step", y: name, stroke: "run", strokeWidth: 2, strokeDasharray: DASHES[i % DASHES.length] })),
        Plot.dot(points, Plot.pointer({ x: "step", y: name, fill: "run", r: 4 })),
        Plot.tip(points, Plot.pointer({ x: "step", y: name, title: (point) => `${point.run}\nstep ${point.step}\n${si.format(point[name])}` })),
      ],
    }), figure));
  }
}

function legend() {
  const place = document.getElementById("run-legend");
  if (!place || runs.length < 2) return;
  place.replaceChildren(...runs.map((run, i) => {
    const item = document.createElement("li");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    line.setAttribute("class", "swatch");
    line.innerHTML = `<line x1="0" x2="16" y1="8" y2="8" stroke="${COLOURS[i % COLOURS.length]}" stroke-width="3" stroke-dasharray="${DASHES[i % DASHES.length]}"/>`;
    item.append(line, Object.assign(document.createElement("span"), { textContent: run.name }));
    return item;
  }));
}

/** Follow a run until it ends; a broken connection starts again by itself, from the first step. */
function listen(run) {
  const source = new EventSource(`/runs/events?run=${encodeURIComponent(run.name)}`);
  source.addEventListener("open", () => (run.points = []));
  source.addEventListener("message", (event) => {
    const news = JSON.parse(event.data);
    run.points.push(...news.points);
    const badge = [...document.querySelectorAll("[data-state]")].find((each) => each.dataset.state === run.name);
    if (badge) badge.textContent = `${run.name}: ${news.about.state}, step ${news.about.done} of ${news.about.steps}`;
    requestAnimationFrame(draw);
  });
  source.addEventListener("end", () => source.close());
  listening.push(source);
}

function start() {
  for (const source of listening) source.close();
  listening = [];
  const data = document.getElementById("drawing");
  if (!data) return;
  runs = JSON.parse(data.textContent);
  draw();
  legend();
  for (const run of runs) if (run.running) listen(run);
}

document.addEventListener("meshwise:answer", start);
addEventListener("resize", draw);
