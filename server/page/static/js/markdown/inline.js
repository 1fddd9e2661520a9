// Parses inline Markdown into a tree of plain objects {type, text | children | address}. It makes one pass over the
// text with a stack of openers, so the time is linear in the text's length.

import { safeAddress } from "./link.js";

const MARKS = new Set(["*", "_", "~"]);
const ESCAPED = /[!-/:-@[-`{-~]/;
const BARE = /^(?:https?:\/\/|mailto:)[^\s<>"`]+/i;
// (address "title"): the address may be in angle brackets, and hold one pair of brackets.
const ADDRESS = String.raw`<[^<>\n]{0,2000}>|[^\s()<>]{0,2000}(?:\([^\s()]{0,200}\)[^\s()<>]{0,200})?`;
const TITLE = String.raw`"[^"\n]{0,500}"|'[^'\n]{0,500}'`;
const TARGET = new RegExp(String.raw`^\(\s{0,9}(${ADDRESS})(?:\s{1,9}(?:${TITLE}))?\s{0,9}\)`);
const NOTE = /^\[\^([^\]\s]{1,60})\]/;
const FORMULAS = { "$$": "$$", "\\(": "\\)", "\\[": "\\]" }; // openings and closings
const LONGEST = 2000; // characters of a formula
const DEEPEST = 40; // open delimiters; further ones are text

/** The tree of a text. */
export function parseInline(text) {
  return new Reader(text).read();
}

class Reader {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.plain = ""; // text since the last node
    this.nodes = []; // finished nodes, and openers until they are closed
    this.openers = []; // indices of open delimiters and brackets in nodes
    this.closings = new Map(); // index of the next closing of formulas, by its text
    this.lost = new Set(); // lengths of backtick runs that have no closing run in the rest of the text
  }

  read() {
    while (this.at < this.text.length) this.step(this.text[this.at]);
    this.flush();
    return this.settled(0);
  }

  step(c) {
    if ((c === "\\" || c === "$") && this.formula()) return;
    if (c === "\\") this.escape();
    else if (c === "\n") this.lineBreak();
    else if (c === "`") this.code();
    else if (MARKS.has(c)) this.mark(c);
    else if (c === "[" && this.note()) return;
    else if (c === "[" || (c === "!" && this.text[this.at + 1] === "[")) this.bracket(c === "!");
    else if (c === "]") this.close();
    else if (c === "<") this.angle();
    else if ("hHmM".includes(c) && !/\w/.test(this.text[this.at - 1] ?? "")) this.bare();
    else this.literal(1);
  }

  literal(count) {
    this.plain += this.text.slice(this.at, this.at + count);
    this.at += count;
  }

  flush() {
    if (this.plain) this.nodes.push({ type: "text", text: this.plain });
    this.plain = "";
  }

  push(node) {
    this.flush();
    this.nodes.push(node);
  }

  escape() {
    const next = this.text[this.at + 1] ?? "";
    if (next === "\n") {
      this.at += 1;
      this.lineBreak();
    } else if (ESCAPED.test(next)) {
      this.plain += next;
      this.at += 2;
    } else this.literal(1);
  }

  /** Reads a formula: $x$, $$x$$, \\(x\\) or \\[x\\]. */
  formula() {
    const opening = this.text.slice(this.at, this.at + 2);
    const closing = FORMULAS[opening];
    if (!closing) return opening[0] === "$" && this.dollars();
    const from = this.at + 2;
    const to = this.closingAt(closing, from);
    if (to < 0 || to - from > LONGEST || !this.text.slice(from, to).trim()) return false;
    this.push({ type: "formula", text: this.text.slice(from, to).trim(), display: opening !== "\\(" });
    this.at = to + 2;
    return true;
  }

  /** The index of the next closing, or -1. It is searched once, so the time stays linear. */
  closingAt(closing, from) {
    const known = this.closings.get(closing);
    if (known !== undefined && (known < 0 || known >= from)) return known;
    const found = this.text.indexOf(closing, from);
    this.closings.set(closing, found);
    return found;
  }

  /**
   * $x$: no space within its ends, no letter or digit before it, and no digit after it, so that "$5 or $6" stays a
   * price.
   */
  dollars() {
    const { text, at } = this;
    if (/[\p{L}\p{N}$\\]/u.test(text[at - 1] ?? "") || /[\s$]/.test(text[at + 1] ?? " ")) return false;
    const end = Math.min(text.length, at + LONGEST);
    for (let to = at + 2; to < end && text[to] !== "\n"; to += 1) {
      if (text[to] === "`") return false;
      if (text[to] !== "$" || text[to - 1] === "\\") continue;
      if (/\s/.test(text[to - 1]) || /[\d$]/.test(text[to + 1] ?? "")) return false;
      this.push({ type: "formula", text: text.slice(at + 1, to), display: false });
      this.at = to + 1;
      return true;
    }
    return false;
  }

  /** Reads a reference to a footnote: [^name]. */
  note() {
    const found = NOTE.exec(this.text.slice(this.at, this.at + 70));
    if (!found) return false;
    this.push({ type: "note", name: found[1], text: found[0] });
    this.at += found[0].length;
    return true;
  }

  lineBreak() {
    this.plain = this.plain.trimEnd();
    this.push({ type: "break" });
    this.at += 1;
  }

  code() {
    const fence = /^`+/.exec(this.text.slice(this.at, this.at + 64))[0];
    const from = this.at + fence.length;
    const to = this.lost.has(fence.length) ? -1 : this.fenceEnd(fence.length, from);
    if (to < 0) {
      this.lost.add(fence.length);
      this.literal(fence.length);
      return;
    }
    const inner = this.text.slice(from, to).replaceAll("\n", " ");
    const padded = inner.length > 2 && inner.startsWith(" ") && inner.endsWith(" ") && inner.trim();
    this.push({ type: "code", text: padded ? inner.slice(1, -1) : inner });
    this.at = to + fence.length;
  }

  /** The index of the next run of exactly `length` backticks, or -1. */
  fenceEnd(length, from) {
    const runs = /`+/g;
    runs.lastIndex = from;
    for (let found = runs.exec(this.text); found; found = runs.exec(this.text)) {
      if (found[0].length === length) return found.index;
    }
    return -1;
  }

  /** Reads a run of * _ or ~, which may close emphasis, open it, or both. */
  mark(c) {
    let run = 1;
    while (this.text[this.at + run] === c) run += 1;
    const before = this.text[this.at - 1] ?? " ";
    const after = this.text[this.at + run] ?? " ";
    const word = /[\p{L}\p{N}]/u;
    const inWord = c === "_" && word.test(before) && word.test(after);
    const left = { closes: !/\s/.test(before) && !inWord, opens: !/\s/.test(after) && !inWord };
    this.at += run;
    let rest = run;
    while (left.closes && rest > 0) {
      const used = this.pair(c, rest);
      if (!used) break;
      rest -= used;
    }
    if (!rest) return;
    if (left.opens && rest <= 3 && (c !== "~" || rest === 2))
      this.open({ type: "mark", mark: c, text: c.repeat(rest) });
    else this.plain += c.repeat(rest);
  }

  open(node) {
    if (this.openers.length >= DEEPEST) {
      this.plain += node.text;
      return;
    }
    this.push(node);
    this.openers.push(this.nodes.length - 1);
  }

  /** Closes the nearest opener of this mark with at most `most` characters; returns the number used, 0 for none. */
  pair(c, most) {
    for (let i = this.openers.length - 1; i >= 0; i -= 1) {
      const index = this.openers[i];
      const opener = this.nodes[index];
      if (opener.type !== "mark") return 0;
      if (opener.mark !== c) continue;
      const used = Math.min(opener.text.length, most, 2);
      if (c === "~" && used < 2) return 0;
      this.flush();
      if (index === this.nodes.length - 1) return 0;
      this.openers.length = i;
      const children = this.settled(index + 1);
      opener.text = opener.text.slice(used);
      if (opener.text) this.openers.push(index);
      else this.nodes.pop();
      this.nodes.push({ type: c === "~" ? "del" : used === 2 ? "strong" : "em", children });
      return used;
    }
    return 0;
  }

  /** Removes and returns the nodes from an index on; unclosed openers among them become text. */
  settled(from) {
    this.flush();
    return this.nodes
      .splice(from)
      .map((n) => (n.type === "mark" || n.type === "bracket" ? { type: "text", text: n.text } : n));
  }

  bracket(image) {
    const text = image ? "![" : "[";
    this.at += text.length;
    this.open({ type: "bracket", text, linked: false });
  }

  /** "]" closes the nearest bracket; an address after it makes a link. An image becomes a link to it. */
  close() {
    const i = this.openers.findLastIndex((index) => this.nodes[index].type === "bracket");
    if (i < 0) {
      this.literal(1);
      return;
    }
    const index = this.openers[i];
    const target = TARGET.exec(this.text.slice(this.at + 1, this.at + 3000));
    const address = target && safeAddress(target[1].replace(/^<|>$/g, ""));
    if (!address) {
      this.openers.splice(i, 1);
      this.nodes[index] = { type: "text", text: this.nodes[index].text };
      this.literal(1);
      return;
    }
    this.openers.length = i;
    const children = this.settled(index + 1).map(unlinked);
    this.nodes.pop();
    this.nodes.push({
      type: "link",
      address,
      children: children.length ? children : [{ type: "text", text: address }],
    });
    this.at += 1 + target[0].length;
  }

  /** <https://...>, and a line break written as HTML, which models like in tables. */
  angle() {
    const near = this.text.slice(this.at, this.at + 2100);
    const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2000})>/i.exec(near);
    const address = found && safeAddress(found[1]);
    const ended = /^<br ?\/?>/i.exec(near);
    if (address) {
      this.push({ type: "link", address, children: [{ type: "text", text: found[1] }] });
      this.at += found[0].length;
    } else if (ended) {
      this.push({ type: "break" });
      this.at += ended[0].length;
    } else this.literal(1);
  }

  /** A bare address (autolink), without the full stop or bracket that follows it. */
  bare() {
    const found = BARE.exec(this.text.slice(this.at, this.at + 2000));
    let shown = found ? found[0].replace(/[.,:;!?'*_~]+$/, "") : "";
    while (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
    if (shown.endsWith("]")) shown = shown.slice(0, -1);
    const address = shown && safeAddress(shown);
    if (!address || this.openers.some((i) => this.nodes[i].type === "bracket")) {
      this.literal(1);
      return;
    }
    this.push({ type: "link", address, children: [{ type: "text", text: shown }] });
    this.at += shown.length;
  }
}

/** The node with spans in place of the links inside it, because links do not nest. */
function unlinked(node) {
  if (!node.children) return node;
  const children = node.children.map(unlinked);
  return node.type === "link" ? { type: "span", children } : { ...node, children };
}
