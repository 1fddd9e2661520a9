// Formulas: the server turns LaTeX into a tree of MathML, and this file makes elements of it, of known names and
// attributes only. Until it has come, and where it is none, the formula is shown as it was written.

import { Client } from "../api/client.js";
import { el, math } from "../dom.js";
import { getKey } from "../store/prefs.js";

const NAMES = new Set(
  ("math mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr " +
    "munder munderover mmultiscripts mprescripts none menclose").split(" "),
);
const ATTRIBUTES = new Set(
  ("accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop " +
    "linethickness lspace mathsize mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace " +
    "scriptlevel separator stretchy symmetric voffset width").split(" "),
);
const DEEPEST = 60;
const LONGEST = 2000; // characters that the server takes
const MOST_KNOWN = 2000; // trees that are kept
const WAIT_MS = 30; // formulas that come within this time are asked for together
const MOST_ASKED = 10; // formulas of a request
const client = new Client(getKey);
const known = new Map(); // trees by formula; null where it is none
let waiting = new Map(); // places by formula, of those that were not asked for yet

/** The element of a formula. */
export function formulaNode({ text, display }) {
  const key = `${display ? "display" : "inline"} ${text}`;
  const place = el("span", { class: display ? "formula display" : "formula" });
  const tree = known.get(key);
  if (tree === undefined && text.length <= LONGEST) ask(key, place);
  if (display) place.tabIndex = 0; // a wide one is scrolled by keys
  fill(place, text, tree ?? null);
  return place;
}

function fill(place, text, tree) {
  const made = tree && element(tree, 0);
  place.replaceChildren(made ?? el("code", {}, text));
  place.classList.toggle("plain", !made);
}

function element(tree, depth) {
  if (typeof tree === "string") return document.createTextNode(tree);
  const [name, attributes, children] = tree;
  if (depth > DEEPEST || !NAMES.has(name)) return null;
  const props = Object.fromEntries(Object.entries(attributes).filter(([key]) => ATTRIBUTES.has(key)));
  const made = children.map((child) => element(child, depth + 1));
  return made.includes(null) ? null : math(name, props, ...made);
}

function ask(key, place) {
  if (!waiting.size) setTimeout(send, WAIT_MS);
  waiting.set(key, [...(waiting.get(key) ?? []), place]);
}

async function send() {
  const places = waiting;
  waiting = new Map();
  const keys = [...places.keys()];
  for (let at = 0; at < keys.length; at += MOST_ASKED)
    await fetchTrees(keys.slice(at, at + MOST_ASKED), places);
}

async function fetchTrees(keys, places) {
  const formulas = keys.map((key) => ({ text: textOf(key), display: key.startsWith("display ") }));
  let trees;
  try {
    ({ trees } = await client.json("/page/formulas", { body: { formulas } }));
  } catch {
    return; // they stay as they were written, and are asked for when they are shown again
  }
  keys.forEach((key, i) => {
    if (known.size >= MOST_KNOWN) known.clear();
    known.set(key, trees[i]);
    for (const place of places.get(key)) fill(place, textOf(key), trees[i]);
  });
}

const textOf = (key) => key.slice(key.indexOf(" ") + 1);
