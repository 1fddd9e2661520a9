// The menu of languages.

import { el } from "../dom.js";
import { LANGUAGES, language } from "../language/language.js";
import { setPref } from "../store/prefs.js";

/** busy(): says that the page cannot be drawn anew now, and returns true; a falsy value otherwise. */
export function languageMenu(select, busy) {
  select.replaceChildren(...LANGUAGES.map(([code, name]) => el("option", { value: code, lang: code }, name)));
  select.value = language;
  select.addEventListener("change", () => {
    if (busy()) {
      select.value = language;
      return;
    }
    setPref("language", select.value);
    location.reload();
  });
}
