// The devices of a mesh, drawn as nodes (or slices of a torus), coloured by pipeline stage; the groups of the device under the pointer are
// outlined. Rank numbers follow the mesh axes from the inside out.

const SIZE = 18; // pixels of a device
const GAP = 2;
const SVG = "http://www.w3.org/2000/svg";
let mesh = null;
let cells = new Map();
let current = null;

/** The coordinate of a rank on every axis. */
function coordinates(rank) {
  const at = {};
  let rest = rank;
  for (const [axis, size] of Object.entries(mesh.sizes)) {
    at[axis] = rest % size;
    rest = Math.floor(rest / size);
  }
  return at;
}

/** The ranks of a communicator that a rank belongs to. */
function members(group, rank) {
  const stage = mesh.devices / mesh.sizes.pp;
  if (group.name === "pp") return range(group.size).map((i) => (rank % stage) + i * stage);
  const base = Math.floor(rank / stage) * stage;
  const inside = rank - base;
  const block = group.stride * group.size;
  const first = Math.floor(inside / block) * block + (inside % group.stride);
  return range(group.size).map((i) => base + first + i * group.stride);
}

const range = (n) => [...Array(n).keys()];

/** Where a rank lies on the torus: its digits along each torus axis, the innermost mesh axis varying fastest. */
function onTorus(rank) {
  const at = Object.values(coordinates(rank));
  const scale = mesh.torus.map(() => 1);
  const where = mesh.torus.map(() => 0);
  at.forEach((value, axis) => {
    let rest = value;
    mesh.laid.forEach((extents, i) => {
      where[i] += (rest % extents[axis]) * scale[i];
      rest = Math.floor(rest / extents[axis]);
      scale[i] *= extents[axis];
    });
  });
  return where;
}

function colour(stage) {
  const stages = mesh.sizes.pp;
  return stages === 1 ? "#8fb4dd" : `hsl(${Math.round((360 * ((stage * 7) % stages)) / stages + 200) % 360} 55% ${stage % 2 ? 70 : 78}%)`;
}

function element(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function draw() {
  const place = document.getElementById("mesh");
  const source = document.getElementById("drawing");
  if (!place || !source) return;
  mesh = JSON.parse(source.textContent);
  cells = new Map();
  if (current === null || current >= mesh.devices) current = mesh.first;
  const blocks = mesh.torus.length ? slices() : nodes();
  const wide = Math.max(...blocks.map((block) => block.columns)) * (SIZE + GAP) + 14;
  const tall = Math.max(...blocks.map((block) => block.rows)) * (SIZE + GAP) + 26;
  const across = Math.max(1, Math.floor((place.clientWidth - 32) / wide));
  const svg = element("svg", { width: Math.min(across, blocks.length) * wide, height: Math.ceil(blocks.length / across) * tall, role: "presentation" });
  blocks.forEach((block, i) => {
    const g = element("g", { transform: `translate(${(i % across) * wide},${Math.floor(i / across) * tall})` });
    g.append(element("text", { x: 2, y: 11, class: "blockname" }, block.name));
    g.append(element("rect", { x: 0.5, y: 16.5, width: block.columns * (SIZE + GAP) + 3, height: block.rows * (SIZE + GAP) + 3, rx: 3, class: block.closed ? "block closed" : "block" }));
    for (const { rank, x, y } of block.devices) g.append(device(rank, x, y));
    svg.append(g);
  });
  place.replaceChildren(svg);
  show(current);
}

function device(rank, x, y) {
  const stage = coordinates(rank).pp;
  const g = element("g", { transform: `translate(${2 + x * (SIZE + GAP)},${18 + y * (SIZE + GAP)})`, class: "rank", "data-rank": rank });
  g.append(element("rect", { width: SIZE, height: SIZE, rx: 2, fill: colour(stage) }));
  if (mesh.sizes.pp > 1) g.append(element("text", { x: SIZE / 2, y: SIZE / 2 }, String(stage)));
  cells.set(rank, g);
  return g;
}

function nodes() {
  const columns = Math.min(4, mesh.per_node);
  return range(Math.ceil((mesh.last - mesh.first) / mesh.per_node)).map((i) => {
    const first = mesh.first + i * mesh.per_node;
    const ranks = range(Math.min(mesh.per_node, mesh.last - first));
    return {
      name: `${mesh.unit} ${first / mesh.per_node}`, columns, rows: Math.ceil(mesh.per_node / columns),
      devices: ranks.map((j) => ({ rank: first + j, x: j % columns, y: Math.floor(j / columns) })),
    };
  });
}

/** Slices of a torus: planes of its two longest axes, one for each step along the third, of every pod. */
function slices() {
  const [x, y = 1, z = 1] = mesh.torus;
  const pod = x * y * z;
  const planes = new Map();
  for (let rank = 0; rank < mesh.devices; rank++) {
    const [a, b = 0, c = 0] = onTorus(rank % pod);
    const key = Math.floor(rank / pod) * z + c;
    if (!planes.has(key)) planes.set(key, []);
    planes.get(key).push({ rank, x: a, y: b });
  }
  const [first, last] = [mesh.first / (x * y), mesh.last / (x * y)];
  const closed = mesh.closed[0] && (mesh.closed[1] ?? true);
  return [...planes.entries()].filter(([key]) => key >= first && key < last).sort(([a], [b]) => a - b).map(([key, devices]) => ({
    name: (mesh.devices > pod ? `pod ${Math.floor(key / z)}, ` : "") + `slice ${key % z}${closed ? ", wraps round" : ""}`,
    columns: x, rows: y, devices, closed,
  }));
}

function show(rank) {
  if (rank === null || !mesh || rank < 0 || rank >= mesh.devices) return;
  current = rank;
  for (const cell of document.querySelectorAll("#mesh .rank.in")) cell.setAttribute("class", "rank");
  const words = [];
  for (const group of mesh.communicators) {
    const ranks = members(group, rank);
    words.push(`${group.name}: ranks ${ranks.slice(0, 6).join(", ")}${ranks.length > 6 ? `, … (${ranks.length})` : ""}`);
    if (!document.querySelector(`[data-group="${group.name}"]`)?.checked) continue;
    for (const other of ranks) {
      const cell = cells.get(other);
      if (cell) cell.setAttribute("class", `${cell.getAttribute("class")} in in-${group.name}`);
    }
  }
  cells.get(rank)?.setAttribute("class", "rank in me");
  const at = coordinates(rank);
  const [from, to] = mesh.stages[at.pp];
  const layers = mesh.chunks > 1 ? `${to - from} layers` : `layers ${from} to ${to - 1}`;
  const where = mesh.torus.length ? `chip ${onTorus(rank % mesh.torus.reduce((a, b) => a * b)).join(", ")}` : `node ${Math.floor(rank / mesh.per_node)}, device ${rank % mesh.per_node}`;
  document.getElementById("device").textContent = `Rank ${rank} (${where}): stage ${at.pp}, ${layers}; ${words.join("; ") || "it communicates with no other"}.`;
}

document.addEventListener("pointermove", (event) => {
  const cell = event.target.closest?.("#mesh .rank");
  if (cell && Number(cell.dataset.rank) !== current) show(Number(cell.dataset.rank));
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-group]")) show(current ?? 0);
});
document.addEventListener("keydown", (event) => {
  if (event.target.id !== "mesh") return;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: mesh.per_node, ArrowUp: -mesh.per_node };
  if (!(event.key in steps)) return;
  event.preventDefault();
  show(current === null ? 0 : Math.min(mesh.devices - 1, Math.max(0, current + steps[event.key])));
});
document.addEventListener("meshwise:answer", draw);
addEventListener("resize", draw);
