// Asks for the API key.

import { el } from "../dom.js";
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
  const form = el(
    "form",
    { id: "key-form", onsubmit },
    el(
      "p",
      {},
      "It is the one that was given to ",
      el("code", {}, "satchel serve --api-key"),
      ". It is sent to this server only.",
    ),
    getKey() && el("p", { id: "key-wrong", class: "wrong" }, "The key that was given before is not valid."),
    el("label", { for: "key-field" }, "API key"),
    field,
    el("label", { class: "check" }, lasting, " Keep it in this browser"),
    dialogButtons(
      el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
      el("button", { type: "submit", class: "strong" }, "Use the key"),
    ),
  );
  const dialog = openDialog("key-dialog", "This server asks for an API key", form);
  if (dialog) field.focus();
}
