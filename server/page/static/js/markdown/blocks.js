// Parses block Markdown into a list of plain objects {type, source, ...}. source: the block's lines; a view whose
// source is unchanged is not rendered again.

const DEEPEST = 12; // nested lists and quotes; deeper ones are paragraphs
const FENCE = /^( {0,3})(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?=\S)| *$|\t| (?= ))/;
const TASK = /^\[([ xX])\] +(?=\S)/;
const NOTE = /^ {0,3}\[\^([^\]\s]{1,60})\]:[ \t]*/;
// A formula on lines of its own; the text after the opening goes on to the closing at a line's end.
const FORMULA = /^ {0,3}(\$\$|\\\[|\\begin\{((?:align|gather|equation|multline)\*?)\})/;
const MOST_FORMULA = 60; // lines
const DIVIDER = /^:?-+:?$/;
const WIDEST = 100; // columns of a table

/** The blocks of a text. */
export function parseBlocks(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = readBlock(lines, at, depth);
    block.source = lines.slice(at, next).join("\n");
    blocks.push(block);
    at = next;
  }
  return blocks;
}

function readBlock(lines, at, depth) {
  const line = lines[at];
  if (isFence(line)) return readCode(lines, at);
  const heading = HEADING.exec(line);
  if (heading)
    return [
      { type: "heading", level: heading[1].length, text: title(line.slice(heading[0].length)) },
      at + 1,
    ];
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return readQuote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return readList(lines, at, depth);
  if (isTable(lines, at)) return readTable(lines, at);
  if (depth === 0 && NOTE.test(line)) return readNote(lines, at);
  return readFormula(lines, at) ?? readParagraph(lines, at, depth);
}

/** An unclosed fence contains the rest of the text, as during streaming. */
function readCode(lines, at) {
  const [opening, indent, fence] = FENCE.exec(lines[at]);
  const language = lines[at].slice(opening.length).trim().split(/\s/, 1)[0].toLowerCase();
  let to = at + 1;
  while (to < lines.length && !endsFence(lines[to], fence)) to += 1;
  const inner = lines.slice(at + 1, to).map((l) => l.slice(Math.min(indent.length, indentOf(l))));
  return [{ type: "code", language, text: inner.join("\n") }, Math.min(to + 1, lines.length)];
}

/** The info string of a backtick fence holds no backtick; with one, the line is inline code. */
function isFence(line) {
  const found = FENCE.exec(line);
  return found !== null && !(found[2][0] === "`" && line.includes("`", found[0].length));
}

function endsFence(line, fence) {
  const found = FENCE.exec(line);
  return found !== null && found[2].startsWith(fence) && !line.slice(found[0].length).trim();
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

/** A heading's text without the #s that may close it. */
function title(text) {
  const words = text.trim().split(/[ \t]+/);
  if (/^#+$/.test(words.at(-1))) words.pop();
  return words.join(" ");
}

function readQuote(lines, at, depth) {
  let to = at;
  const inner = [];
  while (to < lines.length && lines[to].trim() && (QUOTE.test(lines[to]) || !begins(lines, to, depth))) {
    inner.push(lines[to].replace(QUOTE, ""));
    to += 1;
  }
  return [{ type: "quote", blocks: parseBlocks(inner.join("\n"), depth + 1) }, to];
}

function readList(lines, at, depth) {
  const first = ITEM.exec(lines[at])[2];
  const ordered = /\d/.test(first);
  const items = [];
  let to = at;
  let loose = false;
  while (to < lines.length) {
    const found = ITEM.exec(lines[to]);
    if (!found || RULE.test(lines[to]) || found[2].at(-1) !== first.at(-1)) break;
    const [text, next, gap] = readItem(lines, to, found, depth);
    const task = TASK.exec(text);
    const inner = task ? text.slice(task[0].length) : text;
    items.push({ blocks: parseBlocks(inner, depth + 1), done: task ? task[1] !== " " : null });
    loose ||= gap && ITEM.exec(lines[next] ?? "")?.[2].at(-1) === first.at(-1);
    to = next;
  }
  return [{ type: "list", ordered, start: ordered ? parseInt(first, 10) : 1, loose, items }, to];
}

/** An item's text without its indent, the index of the line after it, and whether an empty line precedes that. */
function readItem(lines, at, [mark], depth) {
  const width = mark.length;
  const inner = [lines[at].slice(width)];
  let to = at + 1;
  let gap = false;
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    const indent = indentOf(line);
    if (!line.trim()) {
      gap = true;
      inner.push("");
    } else if (indent >= Math.min(width, 2) || line.startsWith("\t")) {
      inner.push(line.slice(line.startsWith("\t") ? 1 : Math.min(indent, width)));
      gap = false;
    } else if (gap || begins(lines, to, depth)) break;
    else inner.push(line);
  }
  return [inner.join("\n").trimEnd(), to, gap];
}

/** A footnote: its line, and the lines below it that are indented. */
function readNote(lines, at) {
  const [opening, name] = NOTE.exec(lines[at]);
  const inner = [lines[at].slice(opening.length)];
  let to = at + 1;
  for (; to < lines.length; to += 1) {
    const blank = !lines[to].trim();
    const indented = /^(?: {2,}|\t)/.test(lines[to]);
    if (blank ? !/^(?: {2,}|\t)\S/.test(lines[to + 1] ?? "") : !indented) break;
    inner.push(lines[to].replace(/^(?: {1,4}|\t)/, ""));
  }
  return [{ type: "note", name, blocks: parseBlocks(inner.join("\n"), 1) }, to];
}

/** A formula; null where none begins at this line, or where it is not closed yet. */
function readFormula(lines, at) {
  const found = FORMULA.exec(lines[at]);
  if (!found) return null;
  const [opening, mark, name] = found;
  const closing = name ? `\\end{${name}}` : mark === "$$" ? "$$" : "\\]";
  const inner = [];
  for (let to = at; to < lines.length && to < at + MOST_FORMULA && lines[to].trim(); to += 1) {
    const line = (to === at ? lines[to].slice(opening.length) : lines[to]).trimEnd();
    const end = line.indexOf(closing);
    if (end < 0) {
      inner.push(line);
      continue;
    }
    if (end + closing.length < line.length) return null; // text follows: a formula within a paragraph
    inner.push(line.slice(0, end));
    const text = inner.join("\n").trim();
    return text ? [{ type: "formula", text: name ? `${mark}${text}${closing}` : text }, to + 1] : null;
  }
  return null;
}

function isTable(lines, at) {
  const divider = lines[at + 1] ?? "";
  if (!lines[at].includes("|") || !/^[-:| \t]+$/.test(divider)) return false;
  const columns = cells(divider);
  return (
    columns.length <= WIDEST &&
    columns.every((c) => DIVIDER.test(c)) &&
    cells(lines[at]).length === columns.length
  );
}

function readTable(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((c) =>
    c.endsWith(":") ? (c.startsWith(":") ? "center" : "right") : "left",
  );
  const rows = [];
  let to = at + 2;
  for (; to < lines.length && lines[to].trim() && lines[to].includes("|"); to += 1) {
    const row = cells(lines[to]).slice(0, head.length);
    rows.push([...row, ...Array(head.length - row.length).fill("")]);
  }
  return [{ type: "table", head, align, rows }, to];
}

/** The cells of a row; an escaped bar (\|) is text. */
function cells(line) {
  const inner = line
    .trim()
    .replace(/^\|/, "")
    .replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function readParagraph(lines, at, depth) {
  let to = at + 1;
  while (to < lines.length && lines[to].trim() && !begins(lines, to, depth)) to += 1;
  const text = lines
    .slice(at, to)
    .map((l) => l.trimStart())
    .join("\n");
  return [{ type: "paragraph", text: text.trimEnd() }, to];
}

/** Whether a block other than a paragraph begins at this line. */
function begins(lines, at, depth) {
  const line = lines[at];
  if (isFence(line) || HEADING.test(line) || RULE.test(line) || isTable(lines, at)) return true;
  if ((depth === 0 && NOTE.test(line)) || readFormula(lines, at)) return true;
  return depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line));
}
