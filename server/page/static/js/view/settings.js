// The settings panel of a conversation: presets, system prompt, tools, form of the answers and sampling options. The
// server gives ranges and defaults; an invalid value gets an error message beside its field and is not stored.

import { el, the } from "../dom.js";
import { t } from "../language/language.js";
import { readSchema, readStops, settingsOf } from "../store/settings.js";
import { readTools } from "../store/tools.js";
import { Presets } from "./presets.js";

const FIELDS = [
  ["temperature", "Temperature", "How freely words are drawn; 0 always takes the likeliest"],
  ["top_p", "Top p", "Draws among the likeliest words that together have this share"],
  ["top_k", "Top k", "Draws among so many of the likeliest words; 0: all"],
  ["min_p", "Min p", "Leaves out words below this share of the likeliest"],
  ["repeat_penalty", "Repeat penalty", "Above 1 makes repeated words less likely"],
  ["max_tokens", "Most tokens", "Where an answer ends at the latest"],
  ["seed", "Seed", "The same seed and settings give the same answer"],
];
// Fields of text, and how they are read.
const TEXTS = [
  ["system", () => ({ fault: "" })],
  ["schema", readSchema],
  ["stop", readStops],
];
const CHOICES = ["thinking", "overflow"];
const WHOLE = new Set(["top_k", "max_tokens", "seed"]);
const OWN = { max_tokens: { low: 1, high: 2 ** 31 - 1, shown: "no limit" }, seed: { shown: "random" } };
const SAFE = Number.MAX_SAFE_INTEGER;

export class SettingsPanel {
  /** changed(): the conversation's settings changed. asDefaults(): make them the defaults of new conversations. */
  constructor({ changed, asDefaults }) {
    Object.assign(this, { ranges: {}, conversation: null });
    this.presets = new Presets({ current: () => this.conversation, use: (settings) => this.use(settings) });
    this.changed = () => {
      this.presets.show();
      changed();
    };
    this.texts = new Map(TEXTS.map(([name, read]) => [name, this.text(name, read)]));
    for (const name of CHOICES) the(name).addEventListener("change", () => this.choose(name));
    this.tools = { part: the("tools-part"), input: the("tools"), forced: the("tools-forced") };
    this.tools.input.addEventListener("input", () => this.readTools());
    this.tools.forced.addEventListener("change", () => this.readTools());
    this.fields = new Map(FIELDS.map(([name, label, help]) => [name, this.field(name, t(label), t(help))]));
    the("sampling").append(...[...this.fields.values()].map((f) => f.node));
    the("as-defaults").addEventListener("click", asDefaults);
    the("reset").addEventListener("click", () => this.presets.replace(settingsOf()));
  }

  /** Gives the conversation these settings; returns a function that gives it the earlier ones. */
  use(settings, conversation = this.conversation) {
    const before = settingsOf(conversation);
    Object.assign(conversation, settings);
    this.open(this.conversation);
    this.changed();
    return () => this.use(before, conversation);
  }

  /** A field of text; read(text): what is wrong with it, as `fault`. */
  text(name, read) {
    const input = the(name);
    const wrong = document.getElementById(`${name}-wrong`);
    input.addEventListener("input", () => {
      const { fault } = read(input.value);
      if (wrong) this.tell(input, wrong, fault);
      if (fault) return;
      this.conversation[name] = input.value;
      this.changed();
    });
    return { input, wrong };
  }

  choose(name) {
    this.conversation[name] = the(name).value;
    this.changed();
  }

  field(name, label, help) {
    const id = `sampling-${name}`;
    const props = {
      id,
      name,
      inputmode: WHOLE.has(name) ? "numeric" : "decimal",
      autocomplete: "off",
      "aria-describedby": `${id}-help ${id}-wrong`,
    };
    const input = el("input", { ...props, oninput: () => this.read(name) });
    const wrong = el("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
    const node = el(
      "div",
      { class: "field" },
      el("label", { for: id }, label),
      input,
      el("p", { class: "help", id: `${id}-help` }, help),
      wrong,
    );
    return { node, input, wrong };
  }

  /** Sets the server's ranges and defaults. */
  setRanges(sampling) {
    for (const [name] of FIELDS) {
      const own = OWN[name] ?? {};
      const range = { ...sampling[name], ...own };
      this.ranges[name] = range;
      this.fields.get(name).input.placeholder = (range.shown && t(range.shown)) ?? String(range.default ?? "");
    }
  }

  open(conversation) {
    this.conversation = conversation;
    for (const [name, { input, wrong }] of this.texts) {
      input.value = conversation[name] ?? "";
      if (wrong) this.tell(input, wrong, "");
    }
    the("form-part").open = Boolean(conversation.schema || conversation.stop);
    for (const name of CHOICES) the(name).value = conversation[name] ?? "";
    this.presets.show();
    const { part, input, forced } = this.tools;
    input.value = conversation.tools ?? "";
    forced.checked = Boolean(conversation.forced);
    part.open = Boolean(input.value);
    this.tell(input, the("tools-wrong"), "");
    for (const [name, { input, wrong }] of this.fields) {
      input.value = conversation.sampling[name] ?? "";
      this.tell(input, wrong, "");
    }
  }

  /** Shows an error message beside a field; "" removes it. */
  tell(input, wrong, line) {
    wrong.textContent = line;
    wrong.hidden = !line;
    if (line) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  readTools() {
    const { input, forced } = this.tools;
    const { fault } = readTools(input.value);
    this.tell(input, the("tools-wrong"), fault);
    if (fault) return;
    Object.assign(this.conversation, { tools: input.value.trim(), forced: forced.checked });
    this.changed();
  }

  read(name) {
    const { input, wrong } = this.fields.get(name);
    const text = input.value.trim().replace(",", ".");
    const line = text ? this.fault(name, text) : "";
    this.tell(input, wrong, line);
    if (line) return;
    if (text) this.conversation.sampling[name] = Number(text);
    else delete this.conversation.sampling[name];
    this.changed();
  }

  /** The error message for a value, "" for none. */
  fault(name, text) {
    const value = Number(text);
    const { low = -SAFE, high = SAFE } = this.ranges[name] ?? {};
    if (!Number.isFinite(value)) return t("This is not a number.");
    if (WHOLE.has(name) && !Number.isInteger(value)) return t("This must be a whole number.");
    if (value < low || value > Math.min(high, SAFE))
      return t("This must lie between {low} and {high}.", { low, high: Math.min(high, SAFE) });
    return "";
  }
}
