// The menu of the server's models.

import { el, the } from "../dom.js";

export class ModelPicker {
  /** on: {chosen(id), trouble(trouble)}. */
  constructor(client, on) {
    Object.assign(this, { client, on, models: [], wanted: "" });
    this.select = the("model");
    this.select.addEventListener("change", () => on.chosen(this.select.value));
    this.select.addEventListener("focus", () =>
      this.refresh()
        .then(() => this.show(this.wanted))
        .catch(on.trouble),
    );
  }

  get chosen() {
    return this.select.value;
  }

  async refresh() {
    this.models = await this.client.models();
  }

  /** Shows the model of a conversation; the server's first where it names none, or one that is gone. */
  show(wanted) {
    this.wanted = wanted;
    const ids = this.models.map((m) => m.id);
    const shown = [...this.select.options].map((o) => o.value);
    if (ids.join("\n") !== shown.join("\n"))
      this.select.replaceChildren(...ids.map((id) => el("option", { value: id }, id)));
    this.select.value = ids.includes(wanted) ? wanted : (ids[0] ?? "");
    this.select.disabled = !ids.length;
  }

  /** The context of a model in tokens; null while unknown. */
  room(id) {
    const found = this.models.find((m) => m.id === id) ?? this.models[0];
    return found?.room ?? null;
  }
}
