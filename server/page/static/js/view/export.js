// Asks in which format conversations are exported.

import { el } from "../dom.js";
import { t } from "../language/language.js";
import { dialogButtons, openDialog } from "./dialog.js";

/** chosen(format): "markdown" or "json". */
export function askFormat(chosen) {
  const button = (format, label) => {
    const onclick = () => {
      dialog.close();
      chosen(format);
    };
    return el("button", { type: "button", class: "strong", onclick }, label);
  };
  const dialog = openDialog(
    "export-dialog",
    t("Export"),
    el("p", {}, t("Markdown is for reading and holds the versions that are shown.")),
    el("p", {}, t("JSON holds all versions and the settings, and can be imported again.")),
    dialogButtons(
      el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("Cancel")),
      button("json", "JSON"),
      button("markdown", "Markdown"),
    ),
  );
}
