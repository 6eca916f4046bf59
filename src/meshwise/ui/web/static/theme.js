// Runs before the first paint, so that a page never flashes in the wrong theme.
"use strict";
try {
  const kept = localStorage.getItem("meshwise-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* storage may be off: the system's theme is used */ }
