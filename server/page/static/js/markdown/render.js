// Renders Markdown as elements. It creates only the element names listed in this file, in notes.js and, for formulas,
// in formula.js; text becomes text nodes.

import { t } from "../language/language.js";
import { copyButton } from "../view/copy.js";
import { el } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { formulaNode } from "./formula.js";
import { highlighted } from "./highlight.js";
import { parseInline } from "./inline.js";
import { Notes } from "./notes.js";

const INLINE = { em: "em", strong: "strong", del: "del", span: "span" };

/** Shows a text in a container. Unchanged blocks keep their elements, and so the selection and scroll position. */
export function renderMarkdown(container, text) {
  const all = parseBlocks(text);
  const notes = new Notes(all);
  const blocks = all.filter((block) => block.type !== "note");
  const keys = blocks.map((block) => notes.keyOf(block));
  const written = all.filter((block) => block.type === "note");
  if (written.length) keys.push(["notes", ...notes.numbers, ...written.map((b) => b.source)].join("\n"));
  const shown = container.shownBlocks ?? [];
  let same = 0;
  while (same < keys.length && same < shown.length && keys[same] === shown[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  const renderer = new Renderer(notes);
  container.append(...blocks.slice(same).map((block) => renderer.block(block)));
  if (written.length && same < keys.length) container.append(notes.section((b) => renderer.tight(b)));
  container.shownBlocks = keys;
}

class Renderer {
  /** notes: the answer's footnotes. */
  constructor(notes) {
    this.notes = notes;
  }

  block(block) {
    switch (block.type) {
      case "heading":
        // An answer's headings rank below the page's own.
        return el(`h${Math.min(6, block.level + 2)}`, { class: `h${block.level}` }, ...this.inline(block.text));
      case "rule":
        return el("hr");
      case "quote":
        return el("blockquote", {}, ...block.blocks.map((b) => this.block(b)));
      case "list":
        return this.list(block);
      case "table":
        return this.table(block);
      case "code":
        return codeNode(block);
      case "formula":
        return el("p", {}, formulaNode({ text: block.text, display: true }));
      default:
        return el("p", {}, ...this.inline(block.text));
    }
  }

  list({ ordered, start, loose, items }) {
    const made = items.map(({ blocks, done }) => {
      const content = loose ? blocks.map((b) => this.block(b)) : this.tight(blocks);
      if (done === null) return el("li", {}, ...content);
      return el("li", { class: "task" }, taskBox(done), ...content);
    });
    return el(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...made);
  }

  /** The content of a tight list's item (no empty lines), which has no paragraphs. */
  tight(blocks) {
    return blocks.flatMap((b) => (b.type === "paragraph" ? this.inline(b.text) : [this.block(b)]));
  }

  table({ head, align, rows }) {
    const row = (tag, cells) =>
      el("tr", {}, ...cells.map((c, i) => el(tag, { class: `to-${align[i]}` }, ...this.inline(c))));
    const table = el(
      "table",
      {},
      el("thead", {}, row("th", head)),
      el("tbody", {}, ...rows.map((r) => row("td", r))),
    );
    return el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": t("Table") }, table);
  }

  inline(text) {
    return parseInline(text).map((node) => this.inlineNode(node));
  }

  inlineNode(node) {
    switch (node.type) {
      case "text":
        return document.createTextNode(node.text);
      case "break":
        return el("br");
      case "code":
        return el("code", {}, node.text);
      case "formula":
        return formulaNode(node);
      case "note":
        return this.notes.reference(node);
      case "link":
        return this.link(node);
      default:
        return el(INLINE[node.type], {}, ...node.children.map((n) => this.inlineNode(n)));
    }
  }

  link({ address, children }) {
    const props = { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" };
    return el("a", props, ...children.map((n) => this.inlineNode(n)));
  }
}

function taskBox(done) {
  const label = t(done ? "Done" : "To do");
  return el("span", { class: `task-box${done ? " done" : ""}`, role: "img", "aria-label": label });
}

function codeNode({ language, text }) {
  const bar = el(
    "div",
    { class: "code-bar" },
    el("span", {}, language || "text"),
    copyButton(t("Copy code"), () => text),
  );
  const code = el("code", {}, ...highlighted(text, language));
  return el("div", { class: "code-block" }, bar, el("pre", { tabindex: "0" }, code));
}
