// Footnotes of one answer: their numbers, by the order in which the text refers to them.

import { el } from "../dom.js";
import { t } from "../language/language.js";

const REFERENCE = /\[\^([^\]\s]{1,60})\]/g;

export class Notes {
  /** blocks: those of the whole answer. */
  constructor(blocks) {
    this.written = new Map(blocks.filter((b) => b.type === "note").map((b) => [b.name, b]));
    this.numbers = new Map();
    for (const block of blocks) {
      if (block.type === "note") continue;
      for (const [, name] of block.source.matchAll(REFERENCE)) this.number(name);
    }
    for (const name of this.written.keys()) this.number(name);
  }

  number(name) {
    if (this.written.has(name) && !this.numbers.has(name)) this.numbers.set(name, this.numbers.size + 1);
  }

  /** What the look of a block depends on: its text, and the numbers of the notes that it refers to. */
  keyOf({ source }) {
    const names = [...source.matchAll(REFERENCE)].map(([, name]) => this.numbers.get(name) ?? "");
    return names.length ? `${source}\n${names}` : source;
  }

  /** A reference; its plain text while the note is not written. */
  reference({ name, text }) {
    const number = this.numbers.get(name);
    if (!number) return document.createTextNode(text);
    const onclick = (event) => follow(event, `.footnote[data-number="${number}"]`);
    const label = t("Footnote {number}", { number });
    const props = { type: "button", class: "footnote-link", "aria-label": label, onclick };
    return el("sup", { "data-note": number }, el("button", props, String(number)));
  }

  /** The notes at the answer's end; nodes(blocks): how their text is shown. */
  section(nodes) {
    const items = [...this.numbers].map(([name, number]) => {
      const onclick = (event) => follow(event, `sup[data-note="${number}"] button`);
      const label = t("Back to footnote {number} in the text", { number });
      const props = { type: "button", class: "footnote-link", "aria-label": label, onclick };
      const back = el("button", props, "↩");
      const content = nodes(this.written.get(name).blocks);
      return el("li", { class: "footnote", "data-number": number, tabindex: "-1" }, ...content, back);
    });
    return el("section", { class: "footnotes", "aria-label": t("Footnotes") }, el("ol", {}, ...items));
  }
}

/** Goes to an element of the same answer. */
function follow(event, selector) {
  const target = event.target.closest(".message-body")?.querySelector(selector);
  target?.scrollIntoView({ block: "nearest" });
  target?.focus();
}
