// Copying text, and the button for it.

import { el } from "../dom.js";
import { icon } from "../icons.js";
import { t } from "../language/language.js";

const TOLD_MS = 1500;

/** Puts a text on the clipboard; browsers give the clipboard itself to https and this machine only. */
async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = el("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("the browser did not copy");
}

/** A button that copies `text()` and confirms it. */
export function copyButton(label, text) {
  const button = el(
    "button",
    { type: "button", class: "icon-button copy", "aria-label": label, title: label },
    icon("copy"),
  );
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      told(button, "check", t("Copied"), label);
    } catch {
      told(button, "close", t("Could not copy: select the text and copy it by hand"), label);
    }
  });
  return button;
}

function told(button, name, words, label) {
  button.replaceChildren(icon(name));
  button.setAttribute("aria-label", words);
  button.title = words;
  setTimeout(() => {
    button.replaceChildren(icon("copy"));
    button.setAttribute("aria-label", label);
    button.title = label;
  }, TOLD_MS);
}
