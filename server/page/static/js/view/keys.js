// Keyboard shortcuts of the page.

export function shortcuts({ search, fresh, escape }) {
  document.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    if (command && !event.shiftKey && key === "k") run(event, search);
    else if (command && event.shiftKey && key === "o") run(event, fresh);
    else if (key === "escape" && !document.querySelector("dialog[open]")) escape();
  });
}

function run(event, act) {
  event.preventDefault();
  act();
}
