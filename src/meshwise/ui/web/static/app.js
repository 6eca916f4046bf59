// The page's behaviour. Every state is an address: a change of the form, a click on a column or a row asks the server for the answer at a new
// address, replaces the old answer, and puts the address into the history. A newer question aborts an older one.
import { comboboxes } from "./combobox.js";
import { told, copyButtons } from "./copy.js";

const FRAGMENT = "x-meshwise-fragment";
const WAIT = 220; // milliseconds after the last key
const answer = document.getElementById("answer");
const form = document.getElementById("ask");
let asking = null;

/** Ask for the answer at `address` and show it. `keep`: keep the place on the page. */
async function ask(address, { push = true, keep = false } = {}) {
  asking?.abort();
  const mine = (asking = new AbortController());
  busy(true);
  try {
    const reply = await fetch(address, { headers: { [FRAGMENT]: "1" }, signal: mine.signal });
    if (!reply.ok) throw new Error(reply.status === 503 ? (await reply.text()).trim() : `the server answered ${reply.status}`);
    const text = await reply.text();
    if (mine !== asking) return;
    if (push) history.pushState({}, "", address);
    show(text, keep);
  } catch (error) {
    if (error.name !== "AbortError" && mine === asking) offline(address, error);
  } finally {
    if (mine === asking) busy(false);
  }
}

/** Say that an answer is on its way, or has come; while it is, it can be cancelled. */
function busy(now) {
  answer.setAttribute("aria-busy", String(now));
  const cancel = document.getElementById("cancel");
  if (cancel) cancel.hidden = !now;
}

document.getElementById("cancel")?.addEventListener("click", () => {
  asking?.abort(); // the server ends the search of a client that has left
  asking = null;
  busy(false);
  told("Cancelled: the last answer stays.");
});

function show(text, keep) {
  const focused = answer.contains(document.activeElement) ? document.activeElement.id : "";
  answer.innerHTML = text;
  if (keep && focused) document.getElementById(focused)?.focus({ preventScroll: true });
  const title = answer.querySelector("h1")?.textContent;
  if (title) document.title = `${title} · meshwise`;
  ready();
}

/** Say that the server cannot be reached, above the last answer, which stays. */
function offline(address, error) {
  answer.querySelector(".offline")?.remove();
  const note = document.createElement("div");
  note.className = "offline";
  note.setAttribute("role", "alert");
  const words = error instanceof TypeError ? "The server does not answer. Is meshwise ui still running?" : `${error.message}.`;
  note.append(Object.assign(document.createElement("span"), { textContent: words }));
  const again = Object.assign(document.createElement("button"), { type: "button", textContent: "Try again" });
  again.addEventListener("click", () => ask(address, { push: false }));
  note.append(again);
  answer.prepend(note);
}

/** The address of the form's question, without empty fields; the order of the table is kept. */
function question() {
  const asked = new URLSearchParams();
  for (const [name, value] of new FormData(form)) if (value.trim()) asked.append(name, value.trim());
  const now = new URLSearchParams(location.search);
  for (const name of ["sort", "x", "y", "show"]) if (now.get(name)) asked.set(name, now.get(name));
  return `${form.getAttribute("action")}?${asked}`;
}

/** Fetch the parts of an answer that take longer. */
async function lazy(place) {
  try {
    const reply = await fetch(place.dataset.lazy, { headers: { [FRAGMENT]: "1" } });
    const text = await reply.text();
    if (place.isConnected) place.innerHTML = text;
  } catch {
    if (place.isConnected) place.textContent = "The server does not answer.";
  }
}

/** Prepare an answer that was just put into the page. */
function ready() {
  for (const place of answer.querySelectorAll("[data-lazy]")) lazy(place);
  copyButtons(answer);
  document.dispatchEvent(new CustomEvent("meshwise:answer"));
}

if (form) {
  let timer = 0;
  const later = (wait) => {
    clearTimeout(timer);
    timer = setTimeout(() => ask(question()), wait);
  };
  form.addEventListener("input", (event) => later(event.target.type === "text" ? WAIT : 0));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    later(0);
  });
  const help = document.getElementById("help");
  const resting = help.textContent;
  const describe = (event) => {
    const input = event.target.closest(".input");
    help.textContent = input ? input.dataset.help : resting;
  };
  form.addEventListener("focusin", describe);
  form.addEventListener("mouseover", describe);
  comboboxes(form, form.elements.of?.value ?? document.body.dataset.page);
  if (matchMedia("(max-width: 900px)").matches && location.search.length > 1) form.closest("details").open = false;
}

for (const want of document.querySelectorAll(".want")) comboboxes(want, want.getAttribute("action").slice(1));

document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const row = event.target.closest(".layouts tbody tr");
  const link = event.target.closest("a[data-soft]") ?? (getSelection().isCollapsed ? row?.querySelector("a.pick") : null);
  if (!link) return;
  event.preventDefault();
  ask(link.getAttribute("href"), { keep: true });
});

document.addEventListener("keydown", (event) => {
  if (event.key === " " && event.target.matches?.("a.pick")) {
    event.preventDefault();
    event.target.click();
  }
});

document.addEventListener("click", async (event) => {
  if (!event.target.closest("[data-share]")) return;
  await navigator.clipboard.writeText(location.href);
  told("The link is copied: it is the whole question.");
});

/** Sliders and lists inside an answer: each is one parameter of the address. */
document.addEventListener("input", (event) => {
  if (event.target.matches("[data-slider]")) {
    const text = event.target.dataset.values.split("|")[event.target.value];
    event.target.closest("label").querySelector("output").textContent = text;
    event.target.setAttribute("aria-valuetext", text);
  }
});
document.addEventListener("change", (event) => {
  const control = event.target;
  if (!control.matches("[data-slider], [data-parameter]")) return;
  const asked = new URLSearchParams(location.search);
  const value = control.dataset.values ? control.dataset.values.split("|")[control.value] : control.value;
  if (value && value !== control.dataset.own) asked.set(control.name, value);
  else asked.delete(control.name);
  ask(`${location.pathname}?${asked}`, { keep: true });
});

/** Send a file and show what was found in it. */
async function upload(place) {
  busy(true);
  const body = new FormData(place);
  if (form) for (const [name, value] of new FormData(form)) if (value.trim()) body.append(name, value.trim());
  try {
    const reply = await fetch(place.action, { method: "POST", body, headers: { [FRAGMENT]: "1" } });
    if (reply.ok) show(await reply.text(), false);
    else told((await reply.text()).trim() || `the server answered ${reply.status}`);
  } catch (error) {
    offline(location.href, error);
  } finally {
    busy(false);
  }
}
document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-upload]")) return;
  event.preventDefault();
  upload(event.target);
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    const place = event.target.closest?.("[data-upload]");
    if (!place) return;
    event.preventDefault();
    place.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) {
      place.querySelector("input[type=file]").files = event.dataTransfer.files;
      upload(place);
    }
  });
}

addEventListener("popstate", () => location.reload());

document.getElementById("theme")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("meshwise-theme", root.dataset.theme);
  } catch { /* storage may be off: the choice lasts as long as the page */ }
  document.dispatchEvent(new CustomEvent("meshwise:theme"));
});

const more = { "what-if": "./charts.js", accuracy: "./charts.js", audit: "./charts.js", runs: "./runs.js", mesh: "./mesh.js", timeline: "./timeline.js" };
const name = document.body.dataset.page;
if (more[name]) await import(more[name]);
ready();
