// Asks for the API key.

import { el } from "../dom.js";
import { t } from "../language/language.js";
import { dialogButtons, openDialog } from "./dialog.js";
import { getKey, setKey } from "../store/prefs.js";

/** Opens the dialog; done() runs once a key was given. */
export function askKey(done) {
  const field = el("input", { id: "key-field", type: "password", autocomplete: "off", spellcheck: "false" });
  const lasting = el("input", { id: "key-lasting", type: "checkbox" });
  const onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    setKey(field.value.trim(), lasting.checked);
    dialog.close();
    done();
  };
  const told = "It is the one that was given to {command}. It is sent to this server only.";
  const [before, after] = t(told).split("{command}");
  const form = el(
    "form",
    { id: "key-form", onsubmit },
    el("p", {}, before, el("code", {}, "satchel serve --api-key"), after),
    getKey() && el("p", { id: "key-wrong", class: "wrong" }, t("The key that was given before is not valid.")),
    el("label", { for: "key-field" }, t("API key")),
    field,
    el("label", { class: "check" }, lasting, ` ${t("Keep it in this browser")}`),
    dialogButtons(
      el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("Cancel")),
      el("button", { type: "submit", class: "strong" }, t("Use the key")),
    ),
  );
  const dialog = openDialog("key-dialog", t("This server asks for an API key"), form);
  if (dialog) field.focus();
}
