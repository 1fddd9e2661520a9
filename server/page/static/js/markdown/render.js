// Renders Markdown as elements. It creates only the element names listed in this file; text becomes text nodes.

import { copyButton } from "../view/copy.js";
import { el } from "../dom.js";
import { parseBlocks } from "./blocks.js";
import { highlighted } from "./highlight.js";
import { parseInline } from "./inline.js";

const INLINE = { em: "em", strong: "strong", del: "del", span: "span" };

/** Shows a text in a container. Unchanged blocks keep their elements, and so the selection and scroll position. */
export function renderMarkdown(container, text) {
  const blocks = parseBlocks(text);
  const shown = container.shownBlocks ?? [];
  let same = 0;
  while (same < blocks.length && same < shown.length && blocks[same].source === shown[same]) same += 1;
  while (container.childNodes.length > same) container.lastChild.remove();
  container.append(...blocks.slice(same).map(blockNode));
  container.shownBlocks = blocks.map((block) => block.source);
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // An answer's headings rank below the page's own.
      return el(`h${Math.min(6, block.level + 2)}`, { class: `h${block.level}` }, ...inline(block.text));
    case "rule":
      return el("hr");
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    case "code":
      return codeNode(block);
    default:
      return el("p", {}, ...inline(block.text));
  }
}

function listNode({ ordered, start, loose, items }) {
  const made = items.map((blocks) => el("li", {}, ...blocks.flatMap((b) => itemNodes(b, loose))));
  return el(ordered ? "ol" : "ul", ordered && start !== 1 ? { start } : {}, ...made);
}

/** The items of a tight list (no empty lines) have no paragraphs. */
function itemNodes(block, loose) {
  return block.type === "paragraph" && !loose ? inline(block.text) : [blockNode(block)];
}

function tableNode({ head, align, rows }) {
  const row = (tag, cells) =>
    el("tr", {}, ...cells.map((c, i) => el(tag, { class: `to-${align[i]}` }, ...inline(c))));
  const table = el(
    "table",
    {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...rows.map((r) => row("td", r))),
  );
  return el("div", { class: "table-wrap", tabindex: "0", role: "group", "aria-label": "Table" }, table);
}

function codeNode({ language, text }) {
  const bar = el(
    "div",
    { class: "code-bar" },
    el("span", {}, language || "text"),
    copyButton("Copy code", () => text),
  );
  const code = el("code", {}, ...highlighted(text, language));
  return el("div", { class: "code-block" }, bar, el("pre", { tabindex: "0" }, code));
}

function inline(text) {
  return parseInline(text).map(inlineNode);
}

function inlineNode(node) {
  switch (node.type) {
    case "text":
      return document.createTextNode(node.text);
    case "break":
      return el("br");
    case "code":
      return el("code", {}, node.text);
    case "link":
      return linkNode(node);
    default:
      return el(INLINE[node.type], {}, ...node.children.map(inlineNode));
  }
}

function linkNode({ address, children }) {
  const props = { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" };
  return el("a", props, ...children.map(inlineNode));
}
