// Keyboard shortcuts of the page, and the list of them.

import { el } from "../dom.js";
import { t } from "../language/language.js";
import { dialogButtons, openDialog } from "./dialog.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const COMMAND = MAC ? "⌘" : "Ctrl";
const LIST = [
  [["Enter"], "Send the question"],
  [["Shift", "Enter"], "Begin a new line"],
  [["↑"], "Edit the last question, from an empty field"],
  [["Esc"], "Stop the answer, or close what is open"],
  [[COMMAND, "Shift", "O"], "New chat"],
  [[COMMAND, "K"], "Search conversations"],
  [[COMMAND, "Shift", "F"], "Move this chat to a folder"],
  [["F2"], "Rename what has the focus in the list"],
  [[COMMAND, "B"], "Show or hide the conversations"],
  [[COMMAND, ","], "Show or hide the settings of this chat"],
  [[COMMAND, "."], "Show the models"],
  [[COMMAND, "/"], "Show this list"],
];

/** act: {search(), fresh(), move(), sidebar(), settings(), models(), escape()}. */
export function shortcuts(act) {
  const shifted = { o: act.fresh, f: act.move };
  const byKey = { k: act.search, b: act.sidebar, ",": act.settings, ".": act.models };
  document.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    const key = event.key.toLowerCase();
    const free = !document.querySelector("dialog[open]");
    if (command && key === "/") run(event, showShortcuts);
    else if (command && free && event.shiftKey && shifted[key]) run(event, shifted[key]);
    else if (command && free && !event.shiftKey && byKey[key]) run(event, byKey[key]);
    else if (key === "escape" && free) act.escape();
  });
}

function run(event, act) {
  event.preventDefault();
  act();
}

export function showShortcuts() {
  const rows = LIST.map(([keys, what]) =>
    el("div", {}, el("dt", {}, ...keys.map((key) => el("kbd", {}, key))), el("dd", {}, t(what))),
  );
  const close = el("button", { type: "button", class: "strong", onclick: () => dialog.close() }, t("Close"));
  const list = el("dl", { class: "shortcuts" }, ...rows);
  const dialog = openDialog("shortcuts-dialog", t("Keyboard shortcuts"), list, dialogButtons(close));
}
