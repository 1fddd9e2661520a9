// The page's own messages: a banner at the top while something is wrong, and short notices that disappear.

import { el, the } from "../dom.js";
import { iconButton } from "../icons.js";
import { t } from "../language/language.js";

const SHOWN_MS = 7000;
let timer = 0;

/** Shows a short line; act: {label, run} for a button in it, such as one that undoes. */
export function toast(line, act = null) {
  const place = the("toast");
  const close = () => {
    const within = place.contains(document.activeElement);
    place.replaceChildren();
    if (within) document.getElementById("question")?.focus();
  };
  const button =
    act && el("button", { type: "button", class: "quiet", onclick: () => (close(), act.run()) }, act.label);
  place.replaceChildren(
    el("div", { class: "toast" }, el("span", {}, line), button, iconButton("close", t("Dismiss"), close)),
  );
  // Where the focus was on what the notice says is gone, it goes on to the button.
  if (button && document.activeElement === document.body) button.focus();
  const end = () => {
    if (place.querySelector(":focus-visible")) timer = setTimeout(end, SHOWN_MS);
    else close();
  };
  clearTimeout(timer);
  timer = setTimeout(end, SHOWN_MS);
}

/** Shows a line above the conversation until it is called with "" again. */
export function banner(line, act = null) {
  const place = the("banner");
  if (place.dataset.line === line) return;
  place.dataset.line = line;
  const button = act && el("button", { type: "button", class: "quiet", onclick: act.run }, act.label);
  place.replaceChildren(...(line ? [el("span", {}, line), ...(button ? [button] : [])] : []));
  place.hidden = !line;
}

/** Announces a text to screen readers. */
export function announce(line) {
  the("announcer").textContent = line;
}
