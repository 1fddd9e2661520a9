// Syntax highlighting: comments, strings, numbers and keywords, by one regular expression per language family. An
// unknown language stays plain.

import { el } from "../dom.js";

const MOST = 50_000; // characters; longer code stays plain
// An unterminated string ends with its line, so no part of the code is scanned twice.
const STRING = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.){0,200}'`;
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;
const SLASHES = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
const HASH = String.raw`#[^\n]*`;

const C_WORDS =
  "auto bool break case catch char class const constexpr continue default delete do double else enum " +
  "explicit extern false final float fn for func go goto if impl import in inline int interface let long loop match mod " +
  "mut namespace new nil null nullptr operator override package private protected pub public return self short signed " +
  "sizeof static struct super switch template this throw trait true try type typedef typename union unsigned use using " +
  "var virtual void volatile where while";
const FAMILIES = [
  {
    names: "py python",
    strings: String.raw`[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|${STRING})`,
    comments: HASH,
    words:
      "False None True and as assert async await break case class continue def del elif else except finally for from " +
      "global if import in is lambda match nonlocal not or pass raise return self try while with yield",
  },
  {
    names: "js javascript jsx ts typescript tsx mjs",
    strings: String.raw`${STRING}|\x60(?:[^\x60\\]|\\[\s\S])*\x60`,
    comments: SLASHES,
    words:
      "as async await break case catch class const continue default delete do else enum export extends false finally " +
      "for from function if implements import in instanceof interface let new null of return static super switch this " +
      "throw true try type typeof undefined var void while yield",
  },
  {
    names: "c h cpp c++ cc hpp cs csharp java go rust rs swift kotlin kt",
    strings: STRING,
    comments: SLASHES,
    words: C_WORDS,
  },
  {
    names: "sh bash shell zsh console",
    strings: STRING,
    comments: String.raw`(?<=^|\s)#[^\n]*`,
    words: "case do done elif else esac export fi for function if in local return set then until while",
  },
  { names: "json jsonc", strings: STRING, comments: SLASHES, words: "true false null" },
  { names: "yaml yml toml ini", strings: STRING, comments: HASH, words: "true false null yes no on off" },
  {
    names: "sql",
    strings: STRING,
    comments: String.raw`--[^\n]*`,
    words:
      "add all alter and as asc by case create delete desc distinct drop else end exists false from group having in " +
      "index inner insert into is join key left like limit not null on or order outer primary right select set table then " +
      "true union update values view when where with",
    anyCase: true,
  },
];

const rules = new Map();

function ruleOf(language) {
  if (!rules.has(language)) {
    const family = FAMILIES.find((f) => f.names.split(" ").includes(language));
    rules.set(language, family ? compiled(family) : null);
  }
  return rules.get(language);
}

function compiled({ strings, comments, words, anyCase }) {
  const groups = [`(?<comment>${comments})`, `(?<string>${strings})`, `(?<number>${NUMBER})`];
  return new RegExp(
    [...groups, String.raw`\b(?<word>${words.split(" ").join("|")})\b`].join("|"),
    anyCase ? "gi" : "g",
  );
}

/** The highlighted code as nodes. */
export function highlighted(text, language) {
  const rule = text.length <= MOST ? ruleOf(language) : null;
  if (!rule) return [text];
  const nodes = [];
  let at = 0;
  for (const found of text.matchAll(rule)) {
    const kind = Object.keys(found.groups).find((name) => found.groups[name] !== undefined);
    if (found.index > at) nodes.push(text.slice(at, found.index));
    nodes.push(el("span", { class: `code-${kind}` }, found[0]));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes;
}
