// Syntax highlighting: comments, strings, numbers, keywords, names that are called, and tags, by one regular expression
// per language. An unknown language stays plain.
//
// Invariant: the time is linear in the code's length, for the code is a model's. An unterminated comment or string
// ends with its line or with the code, so that no part is scanned twice.

import { el } from "../dom.js";
import { LANGUAGES } from "./languages.js";

const MOST = 50_000; // characters; longer code stays plain
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w{0,4}\b`;
const CALL = String.raw`\b[A-Za-z_]\w{0,80}(?=\()`;

const rules = new Map();

function ruleOf(name) {
  if (!rules.has(name)) {
    const language = LANGUAGES.find((one) => one.names.split(" ").includes(name));
    rules.set(name, language ? compiled(language) : null);
  }
  return rules.get(name);
}

/** parts of a language: regular expressions by the kind of text; see languages.js. */
function compiled({ comments, strings, tags, words = "", calls = true, anyCase = false, lines = false }) {
  const groups = [
    ["comment", comments],
    ["string", strings],
    ["tag", tags],
    ["number", lines ? "" : NUMBER],
    ["word", words && String.raw`(?<![\w$@-])(?:${words.trim().split(/\s+/).join("|")})(?![\w-])`],
    ["call", calls && !lines ? CALL : ""],
  ];
  const parts = groups.filter(([, part]) => part).map(([kind, part]) => `(?<${kind}>${part})`);
  return new RegExp(parts.join("|"), `gm${anyCase ? "i" : ""}`);
}

/** The highlighted code as nodes. */
export function highlighted(text, language) {
  const rule = text.length <= MOST ? ruleOf(language) : null;
  if (!rule) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(rule)) {
    if (!found[0]) continue;
    const kind = Object.keys(found.groups).find((name) => found.groups[name] !== undefined);
    if (found.index > at) nodes.push(text.slice(at, found.index));
    nodes.push(el("span", { class: `code-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}
