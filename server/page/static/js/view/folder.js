// Asks for the folder of a conversation.

import { el } from "../dom.js";
import { icon } from "../icons.js";
import { t } from "../language/language.js";
import { dialogButtons, openDialog } from "./dialog.js";

/** current: the conversation's folder, null for none. on: {chosen(folder or null), fresh()}. */
export function askFolder(folders, current, on) {
  const choice = (label, mark, run, chosen = false) => {
    const onclick = () => {
      dialog.close();
      run();
    };
    const props = { type: "button", autofocus: chosen, "aria-current": chosen && "true", onclick };
    return el("button", props, icon(mark), label);
  };
  const choices = el(
    "div",
    { class: "choices", onkeydown: step },
    choice(t("No folder"), "close", () => on.chosen(null), !current),
    ...folders.map((one) => choice(one.name, "folder", () => on.chosen(one), one.id === current?.id)),
    choice(t("New folder"), "plus", on.fresh),
  );
  const close = el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("Cancel"));
  const dialog = openDialog("folder-dialog", t("Move to a folder"), choices, dialogButtons(close));
}

/** Arrow keys go from one choice to the next. */
function step(event) {
  const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (!next) return;
  event.preventDefault();
  document.activeElement[next]?.focus();
}
