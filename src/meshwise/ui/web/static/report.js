"use strict";
// Inside a report: the theme switch and the copy buttons. A file opened from disk has no modules.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("pre");
    const line = document.getElementById("told");
    try {
      await navigator.clipboard.writeText(text.textContent);
      line.textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(text);
      line.textContent = "Press Ctrl+C to copy.";
    }
    line.classList.add("shown");
    setTimeout(() => line.classList.remove("shown"), 2500);
  });
}
