// Asks for the API key.

import { the } from "../dom.js";
import { getKey, setKey } from "../store/prefs.js";

/** Opens the dialog; done() runs after the user has entered a key. */
export function askKey(done) {
  const dialog = the("key-dialog");
  if (dialog.open) return;
  const field = the("key-field");
  field.value = "";
  the("key-wrong").hidden = !getKey();
  the("key-form").onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    setKey(field.value.trim(), the("key-lasting").checked);
    dialog.close();
    done();
  };
  the("key-cancel").onclick = () => dialog.close();
  dialog.showModal();
  field.focus();
}
