// Buttons that copy the text beside them, and the line that says so.

let timer = 0;

/** Show a sentence at the bottom for a moment. */
export function told(sentence) {
  const line = document.getElementById("told");
  if (!line) return;
  line.textContent = sentence;
  line.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => line.classList.remove("shown"), 2500);
}

export function copyButtons(root) {
  for (const button of root.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const text = button.parentElement.querySelector("pre").textContent;
      try {
        await navigator.clipboard.writeText(text);
        told("Copied.");
      } catch {
        getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
        told("Press Ctrl+C to copy.");
      }
    });
  }
}
