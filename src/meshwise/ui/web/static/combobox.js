// Inputs with a list to pick from, by mouse or by keys (the combobox pattern of WAI-ARIA): fixed values of a field, or names that the server
// suggests while one types.

/** Turn every input with values to pick from into a combobox. `page` names the page, since serving adds weight formats to models. */
export function comboboxes(form, page) {
  for (const input of form.querySelectorAll("input[data-catalogue], input[data-options]")) combobox(input, page);
}

function combobox(input, page) {
  input.removeAttribute("list");
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-autocomplete", "list");
  input.setAttribute("aria-expanded", "false");
  const list = document.createElement("ul");
  list.className = "options";
  list.id = `o-${input.name}`;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", input.name);
  list.hidden = true;
  input.after(list);
  input.setAttribute("aria-controls", list.id);
  let current = -1;
  let fetching = null;

  const close = () => {
    fetching?.abort(); // names that come later must not open it again
    list.hidden = true;
    current = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const pick = (value) => {
    input.value = value;
    close();
    input.dispatchEvent(new Event("input", { bubbles: true }));
    close();
  };
  const mark = (next) => {
    const items = [...list.children];
    current = (next + items.length) % items.length;
    items.forEach((item, i) => item.setAttribute("aria-selected", String(i === current)));
    input.setAttribute("aria-activedescendant", items[current].id);
    items[current].scrollIntoView({ block: "nearest" });
  };
  const open = (found) => {
    list.replaceChildren(...found.map((each, i) => option(each, `${list.id}-${i}`, pick)));
    list.hidden = found.length === 0;
    current = -1;
    input.setAttribute("aria-expanded", String(!list.hidden));
  };
  const look = async (typed, whole = false) => {
    if (input.dataset.options) {
      open(input.dataset.options.split("|").map((value) => ({ value, about: "" })));
      return;
    }
    fetching?.abort();
    fetching = new AbortController();
    const query = new URLSearchParams({ catalogue: input.dataset.catalogue, typed, page, whole: whole ? "1" : "" });
    try {
      const reply = await fetch(`/suggest?${query}`, { signal: fetching.signal });
      if (reply.ok && document.activeElement === input) open(await reply.json());
    } catch { /* a newer key came first, or the server is gone: typing goes on without names */ }
  };

  input.addEventListener("input", (event) => {
    if (event.isTrusted) look(input.value);
  });
  input.addEventListener("click", () => list.hidden && look(input.value, true));
  input.addEventListener("blur", close); // a press on the list keeps the focus, so this is another field or none
  document.addEventListener("pointerdown", (event) => event.target !== input && !list.contains(event.target) && close());
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) look(input.value);
      else mark(current + (event.key === "ArrowDown" ? 1 : -1));
    } else if (event.key === "Enter" && current >= 0) {
      event.preventDefault();
      pick(list.children[current].dataset.value);
    } else if (event.key === "Enter" || event.key === "Escape" || event.key === "Tab") close();
  });
}

function option(each, id, pick) {
  const item = document.createElement("li");
  item.id = id;
  item.setAttribute("role", "option");
  item.setAttribute("aria-selected", "false");
  item.dataset.value = each.value;
  item.append(each.value);
  if (each.about) item.append(Object.assign(document.createElement("span"), { textContent: each.about }));
  item.addEventListener("mousedown", (event) => event.preventDefault()); // the input keeps the focus
  item.addEventListener("click", () => pick(each.value));
  return item;
}
