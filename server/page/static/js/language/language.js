// The page's language: the browser's, until the user chooses another. English texts are the keys of words.js.

import { getPref } from "../store/prefs.js";
import { WORDS } from "./words.js";

export const LANGUAGES = [
  ["en", "English"],
  ["de", "Deutsch"],
  ["fr", "Français"],
  ["es", "Español"],
  ["zh", "中文"],
  ["ja", "日本語"],
];
const CODES = LANGUAGES.map(([code]) => code);
const ATTRIBUTES = ["aria-label", "placeholder", "title"];
const wanted = [getPref("language", ""), ...navigator.languages].map((code) => code.split("-", 1)[0]);

export const language = wanted.find((code) => CODES.includes(code)) ?? "en";

/** A text in the page's language, with values in the places of {name}. */
export function t(text, values = {}) {
  const found = Object.hasOwn(WORDS, text) ? [text, ...WORDS[text]][CODES.indexOf(language)] : text;
  return found.replace(/\{(\w+)\}/g, (place, name) => values[name] ?? place);
}

/** A number as the language writes it. */
export function number(value) {
  return value.toLocaleString(language);
}

const SIZES = ["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"];

/** A number of bytes in the unit that fits; per: "-per-second" for a speed. */
export function bytes(value, per = "") {
  const step = Math.min(SIZES.length - 1, Math.floor(Math.log10(Math.max(1, value)) / 3));
  const unit = SIZES[step] + per;
  const unitDisplay = step ? "short" : "long";
  const options = { style: "unit", unit, unitDisplay, maximumFractionDigits: step > 1 ? 1 : 0 };
  return (value / 1000 ** step).toLocaleString(language, options);
}

/** Translates the texts of the page's own HTML. */
export function translatePage() {
  document.documentElement.lang = language;
  if (language === "en") return;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { currentNode: node } = texts;
    const text = node.data.trim();
    if (text) node.data = node.data.replace(text, () => t(text));
  }
  for (const name of ATTRIBUTES) {
    for (const node of document.querySelectorAll(`[${name}]`))
      node.setAttribute(name, t(node.getAttribute(name)));
  }
}
