// Presets: settings under a name, kept in this browser.

import { el, the } from "../dom.js";
import { t } from "../language/language.js";
import { getPref, setPref } from "../store/prefs.js";
import { sameSettings, settingsOf } from "../store/settings.js";
import { dialogButtons, openDialog } from "./dialog.js";
import { toast } from "./notice.js";

const LONGEST = 80; // characters of a name

export class Presets {
  /** current(): the shown settings; use(settings): show these, and return what brings back the others. */
  constructor({ current, use }) {
    Object.assign(this, { current, use });
    this.select = the("preset");
    this.select.addEventListener("change", () => this.choose(this.select.value));
    the("preset-save").addEventListener("click", () => this.ask());
    this.deleting = the("preset-delete");
    this.deleting.addEventListener("click", () => this.remove(this.select.value));
  }

  get all() {
    return getPref("presets", []);
  }

  /** Shows which preset the current settings are. */
  show() {
    const name = this.all.find((p) => sameSettings(p.settings, this.current()))?.name ?? "";
    const options = this.all.map((p) => el("option", { value: p.name }, p.name));
    this.select.replaceChildren(el("option", { value: "" }, t("None")), ...options);
    this.select.value = name;
    this.deleting.disabled = !name;
  }

  choose(name) {
    this.replace(settingsOf(this.all.find((p) => p.name === name)?.settings));
  }

  /** Shows other settings; those that no preset holds come back by undo. */
  replace(settings) {
    const before = settingsOf(this.current());
    const kept = [{ settings: settingsOf() }, ...this.all].some((p) => sameSettings(p.settings, before));
    const restore = this.use(settings);
    if (!kept) toast(t("The settings were replaced."), { label: t("Undo"), run: restore });
  }

  ask() {
    const field = el("input", { id: "preset-name", maxlength: LONGEST, autocomplete: "off", required: true });
    field.value = this.select.value;
    const onsubmit = (event) => {
      event.preventDefault();
      const name = field.value.trim();
      if (!name) return;
      dialog.close();
      this.save(name);
    };
    const form = el(
      "form",
      { onsubmit },
      el("p", {}, t("It holds all settings of this chat. One with the same name is replaced.")),
      el("label", { for: "preset-name" }, t("Name")),
      field,
      dialogButtons(
        el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("Cancel")),
        el("button", { type: "submit", class: "strong" }, t("Save")),
      ),
    );
    const dialog = openDialog("preset-dialog", t("Save these settings"), form);
    field.select();
  }

  save(name) {
    const others = this.all.filter((p) => p.name !== name);
    const made = [...others, { name, settings: settingsOf(this.current()) }];
    this.put(made.sort((a, b) => a.name.localeCompare(b.name)));
  }

  remove(name) {
    const before = this.all;
    this.put(before.filter((p) => p.name !== name));
    toast(t("“{title}” was deleted.", { title: name }), { label: t("Undo"), run: () => this.put(before) });
  }

  put(presets) {
    setPref("presets", presets);
    this.show();
  }
}
