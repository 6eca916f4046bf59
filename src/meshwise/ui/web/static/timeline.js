// The operations of a step on a canvas: a row per stage, zoomed and moved along time with d3.
/* global d3 */

const TONES = ["#8ec9f0", "#7fc29b", "#f2c14e"];
const LEFT = 58;
const BOTTOM = 26;
let data = null;
let zoom = null;
let view = null;
let redraw = () => {};

function start() {
  const place = document.getElementById("gantt");
  const source = document.getElementById("drawing");
  if (!place || !source) return;
  data = JSON.parse(source.textContent);
  data.byStage = d3.range(data.stages).map(() => []);
  data.stage.forEach((stage, i) => data.byStage[stage].push(i));
  for (const rows of data.byStage) rows.sort((a, b) => data.start[a] - data.start[b]);
  const row = Math.max(12, Math.min(30, 520 / data.stages));
  const canvas = document.createElement("canvas"); // a new one, so that no listener of an earlier drawing is left
  place.replaceChildren(canvas);
  place.style.height = `${row * data.stages + BOTTOM}px`;
  const selection = d3.select(canvas);
  const size = () => [place.clientWidth, row * data.stages + BOTTOM];
  const draw = () => paint(canvas, ...size(), row);
  const [width, height] = size();
  zoom = d3.zoom().scaleExtent([1, 2000]).translateExtent([[LEFT, 0], [width, height]]).extent([[LEFT, 0], [width, height]])
    .on("zoom", (event) => {
      view = event.transform;
      draw();
    });
  selection.call(zoom).on("dblclick.zoom", null);
  view = d3.zoomIdentity;
  redraw = draw;
  draw();
  canvas.addEventListener("pointermove", (event) => point(event, width, row));
  place.onkeydown = (event) => {
    const name = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" }[event.key];
    if (!name) return;
    event.preventDefault();
    move(selection, name, width);
  };
  for (const button of document.querySelectorAll("[data-zoom]")) button.onclick = () => move(selection, button.dataset.zoom, width);
  legend();
}

function move(selection, name, width) {
  if (name === "in" || name === "out") zoom.scaleBy(selection, name === "in" ? 1.8 : 1 / 1.8);
  else if (name === "all") zoom.transform(selection, d3.zoomIdentity);
  else zoom.translateBy(selection, ((name === "left" ? 1 : -1) * (width - LEFT) * 0.25) / view.k, 0);
}

const scale = (width) => view.rescaleX(d3.scaleLinear([0, data.step], [LEFT, width]));

function paint(canvas, width, height, row) {
  const ratio = devicePixelRatio;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = getComputedStyle(canvas).color;
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.clearRect(0, 0, width, height);
  const x = scale(width);
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, width - LEFT, height);
  g.clip();
  g.font = "11px system-ui, sans-serif";
  g.textAlign = "center";
  g.textBaseline = "middle";
  const [from, to] = x.domain();
  data.byStage.forEach((rows, stage) => {
    const y = stage * row;
    for (const i of rows) {
      if (data.end[i] < from) continue;
      if (data.start[i] > to) break;
      const [a, b] = [x(data.start[i]), x(data.end[i])];
      g.globalAlpha = 1 - (0.5 * data.chunk[i]) / data.chunks;
      g.fillStyle = TONES[data.kind[i]];
      g.fillRect(a, y + 1, Math.max(0.4, b - a - (b - a > 3 ? 0.7 : 0)), row - 2);
      if (b - a > 16 && row >= 12) {
        g.globalAlpha = 1;
        g.fillStyle = "#10151c";
        g.fillText(`${"FBW"[data.kind[i]]}${data.microbatch[i]}`, (a + b) / 2, y + row / 2);
      }
    }
    g.globalAlpha = 1;
    for (const part of data.after) {
      g.fillStyle = part.colour;
      g.fillRect(x(part.start), y + 1, Math.max(0.4, x(part.end) - x(part.start)), row - 2);
    }
  });
  g.restore();
  g.fillStyle = ink;
  g.strokeStyle = ink;
  g.font = "11px system-ui, sans-serif";
  g.textBaseline = "middle";
  g.textAlign = "right";
  const every = Math.ceil(14 / row);
  for (let stage = 0; stage < data.stages; stage += every) g.fillText(`stage ${stage}`, LEFT - 8, stage * row + row / 2);
  g.textAlign = "center";
  for (const tick of x.ticks(8)) {
    if (x(tick) < LEFT) continue;
    g.globalAlpha = 0.25;
    g.fillRect(x(tick), 0, 1, height - BOTTOM + 4);
    g.globalAlpha = 1;
    g.fillText(`${x.tickFormat(8)(tick)} s`, Math.min(width - 20, x(tick)), height - BOTTOM + 15);
  }
}

/** Say which operation is under the pointer. */
function point(event, width, row) {
  const x = scale(width);
  const stage = Math.floor(event.offsetY / row);
  const now = x.invert(event.offsetX);
  const line = document.getElementById("operation");
  const i = data.byStage[stage]?.find((each) => data.start[each] <= now && now <= data.end[each]);
  const part = data.after.find((each) => each.start <= now && now <= each.end);
  if (i !== undefined) {
    const chunk = data.chunks > 1 ? `, chunk ${data.chunk[i]}` : "";
    line.textContent = `Stage ${stage}, ${data.passes[data.kind[i]]} of micro-batch ${data.microbatch[i]}${chunk}: ${data.start[i].toPrecision(4)} to ${data.end[i].toPrecision(4)} s, ${(1e3 * (data.end[i] - data.start[i])).toPrecision(4)} ms.`;
  } else if (part) line.textContent = `Every stage, ${part.words}: ${(1e3 * (part.end - part.start)).toPrecision(4)} ms.`;
  else if (stage < data.stages && event.offsetX > LEFT) line.textContent = `Stage ${stage} waits: the pipeline bubble.`;
}

function legend() {
  const entries = [...new Set(data.kind)].sort().map((kind) => [data.passes[kind] + (data.chunks > 1 ? " (paler: later chunks)" : ""), TONES[kind], "FBW"[kind]]);
  for (const part of data.after) entries.push([part.words, part.colour, ""]);
  document.getElementById("gantt-legend").replaceChildren(...entries.map(([words, colour, letter]) => {
    const item = document.createElement("li");
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = colour;
    swatch.textContent = letter;
    item.append(swatch, Object.assign(document.createElement("span"), { textContent: words }));
    return item;
  }));
}

document.addEventListener("meshwise:answer", start);
document.addEventListener("meshwise:theme", () => redraw());
addEventListener("resize", start);
