// The dialog of the server's models: their state for everyone; loading, unloading and downloading for admins.

import { Downloads } from "../downloads.js";
import { el, say, the } from "../dom.js";
import { bytes, number, t } from "../language/language.js";
import { dialogButtons, openDialog } from "./dialog.js";
import { toast } from "./notice.js";

const EVERY_MS = 1000;
const HELP =
  "A name of Ollama’s (llama3.2), a repository of the Hugging Face Hub (user/repo, user/repo:Q4_K_M), or the " +
  "address of its page. A download goes on while this tab is open; begun again, it goes on where it was.";

export class ModelsDialog {
  /** changed(): there are other models, or one was loaded or unloaded. */
  constructor(client, changed) {
    Object.assign(this, { client, changed, dialog: null, rows: new Map(), asking: 0 });
    this.button = the("open-models");
    this.button.addEventListener("click", () => this.open());
    this.downloads = new Downloads(client, {
      changed: () => this.showDownloads(),
      ended: (name) => this.ended(name),
    });
    this.showDownloads();
  }

  open() {
    const close = el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, t("Close"));
    this.rows = new Map();
    this.list = el("ul", { class: "models" });
    this.coming = el("ul", { class: "models" });
    this.wrong = el("p", { class: "wrong", role: "alert", hidden: true });
    this.form = this.downloadForm();
    const dialog = openDialog(
      "models-dialog",
      t("Models"),
      this.list,
      this.wrong,
      this.form,
      dialogButtons(close),
    );
    if (!dialog) return;
    this.dialog = dialog;
    dialog.addEventListener("close", () => {
      this.dialog = null;
      clearTimeout(this.asking);
    });
    this.showDownloads();
    this.ask();
  }

  downloadForm() {
    const field = el("input", {
      id: "download-name",
      maxlength: "1000",
      autocomplete: "off",
      autocapitalize: "off",
      spellcheck: "false",
      required: true,
      "aria-describedby": "download-help",
    });
    const onsubmit = (event) => {
      event.preventDefault();
      if (!field.value.trim()) return;
      this.downloads.begin(field.value.trim());
      field.value = "";
    };
    const button = el("button", { type: "submit", class: "strong" }, t("Download"));
    return el(
      "form",
      { class: "field", hidden: true, onsubmit },
      el("label", { for: field.id }, t("Download a model")),
      el("div", { class: "row" }, field, button),
      el("p", { id: "download-help", class: "help" }, t(HELP)),
      this.coming,
    );
  }

  /** Asks for the models' states, and again each second while the dialog is open. */
  async ask() {
    clearTimeout(this.asking);
    try {
      const { models, admin } = await this.client.json("/dashboard/stats");
      this.tell("");
      this.show(models, admin);
    } catch (trouble) {
      this.tell(trouble.message);
    }
    clearTimeout(this.asking);
    if (this.dialog) this.asking = setTimeout(() => this.ask(), EVERY_MS);
  }

  tell(line) {
    this.wrong.hidden = !line;
    say(this.wrong, line);
  }

  show(models, admin) {
    this.form.hidden = !admin;
    const names = new Set(models.map((model) => model.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.node.remove();
      this.rows.delete(name);
    }
    for (const model of models) {
      if (!this.rows.has(model.name)) this.rows.set(model.name, new Row((row) => this.change(row)));
      const row = this.rows.get(model.name);
      this.list.append(...(row.node.isConnected ? [] : [row.node]));
      row.show(model, admin);
    }
  }

  /** Loads a model, or unloads one that is loaded. */
  async change(row) {
    const { name, state } = row.model;
    row.busy = true;
    row.show({ ...row.model, error: "" }, true);
    let line = "";
    try {
      const path = state === "loaded" ? "/models/unload" : "/models/load";
      const asked = this.client.send(path, { body: { model: name } });
      this.ask();
      await asked;
    } catch (trouble) {
      line = trouble.message;
    }
    row.busy = false;
    await this.ask();
    // A model that failed shows why in its row.
    if (row.model.state !== "failed") this.tell(line);
    this.changed();
  }

  ended(name) {
    toast(t("{name} was downloaded.", { name }));
    this.changed();
    if (this.dialog) this.ask();
  }

  showDownloads() {
    const { all } = this.downloads ?? { all: [] };
    this.button.classList.toggle("running", all.some((one) => !one.trouble));
    if (!this.dialog) return;
    const shown = new Map([...this.coming.children].map((node) => [node.download, node]));
    for (const [download, node] of shown) if (!all.includes(download)) node.remove();
    for (const download of all) {
      if (!shown.has(download)) this.coming.append(this.downloadPart(download));
    }
    for (const node of this.coming.children) node.update();
  }

  downloadPart(download) {
    const { name } = download;
    const bar = el("progress", { max: "1", "aria-label": name });
    const state = el("span", { class: "model-state" });
    const wrong = el("p", { class: "wrong", role: "alert", hidden: true });
    const begin = () => {
      this.downloads.begin(name);
      this.coming.lastChild.querySelector("button:not([hidden])").focus();
    };
    const again = el(
      "button",
      { type: "button", class: "quiet", hidden: true, onclick: begin },
      t("Try again"),
    );
    const drop = () => {
      this.downloads.drop(download);
      this.dialog.querySelector("#download-name").focus();
    };
    const cancel = el(
      "button",
      { type: "button", class: "quiet", "aria-label": t("Cancel {name}", { name }), onclick: drop },
      t("Cancel"),
    );
    const node = el("li", {}, el("span", { class: "model-name" }, name), state, again, cancel, bar, wrong);
    const update = () => {
      const { done, total, trouble } = download;
      say(state, trouble ? "" : progressLine(download));
      bar.hidden = Boolean(trouble);
      if (total) bar.value = done / total;
      again.hidden = wrong.hidden = !trouble;
      say(wrong, trouble?.message ?? "");
    };
    return Object.assign(node, { download, update });
  }
}

/** A model of the list. */
class Row {
  constructor(change) {
    this.busy = false;
    this.name = el("span", { class: "model-name" });
    this.state = el("span", { class: "model-state" });
    // Not disabled while it waits: the focus stays on it.
    const onclick = () => this.button.ariaDisabled === "true" || change(this);
    this.button = el("button", { type: "button", class: "quiet", onclick });
    this.bar = el("progress", { max: "100" });
    this.wrong = el("p", { class: "wrong", hidden: true });
    this.node = el("li", {}, this.name, this.state, this.button, this.bar, this.wrong);
  }

  show(model, admin) {
    this.model = model;
    const { name, state, percent, size, error } = model;
    const loading = state === "loading";
    const told = loading ? t("loading, {percent} %", { percent }) : t(state);
    say(this.name, name);
    say(this.state, size ? `${told} · ${bytes(size)}` : told);
    this.bar.hidden = !loading;
    this.bar.value = percent;
    this.bar.ariaLabel = name;
    this.wrong.hidden = !error;
    say(this.wrong, error);
    const loaded = state === "loaded";
    say(this.button, t(loaded ? "Unload" : "Load"));
    this.button.ariaLabel = t(loaded ? "Unload {name}" : "Load {name}", { name });
    this.button.ariaDisabled = String(loading || this.busy);
    this.button.hidden = !admin;
  }
}

function progressLine({ done, total, rate }) {
  if (!total) return t("It begins …");
  const values = { done: bytes(done), all: bytes(total), percent: number(Math.floor((100 * done) / total)) };
  const line = t("{done} of {all}, {percent} %", values);
  return rate ? `${line} · ${bytes(rate, "-per-second")}` : line;
}
