// The two panels beside the conversation. On a narrow screen one at a time covers it.

import { the } from "../dom.js";
import { getPref, setPref } from "../store/prefs.js";

const narrow = matchMedia("(max-width: 860px)");

export class Panels {
  constructor() {
    this.panels = { sidebar: the("sidebar"), settings: the("settings") };
    this.buttons = { sidebar: the("toggle-sidebar"), settings: the("toggle-settings") };
    for (const name of Object.keys(this.panels)) {
      this.buttons[name].addEventListener("click", () => this.toggle(name));
    }
    for (const button of document.querySelectorAll("[data-close]")) {
      button.addEventListener("click", () => this.show(button.dataset.close, false));
    }
    the("backdrop").addEventListener("click", () => this.closeOver());
    narrow.addEventListener("change", () => this.start());
    this.start();
  }

  start() {
    for (const name of Object.keys(this.panels)) {
      const wide = name === "sidebar" ? getPref("panel.sidebar", true) : getPref("panel.settings", false);
      this.set(name, !narrow.matches && wide);
    }
  }

  isOpen(name) {
    return !this.panels[name].hidden;
  }

  toggle(name) {
    this.show(name, !this.isOpen(name));
  }

  show(name, open) {
    if (narrow.matches && open) this.closeOver();
    this.set(name, open);
    if (!narrow.matches) setPref(`panel.${name}`, open);
    // On a phone, a focused field would open the keyboard over the panel.
    if (open)
      this.panels[name]
        .querySelector(narrow.matches ? "button" : "input, textarea")
        .focus({ preventScroll: true });
    else this.buttons[name].focus({ preventScroll: true });
  }

  set(name, open) {
    this.panels[name].hidden = !open;
    this.buttons[name].setAttribute("aria-expanded", String(open));
    const over = narrow.matches && Object.keys(this.panels).some((n) => this.isOpen(n));
    the("backdrop").hidden = !over;
    document.querySelector("main").inert = over; // the focus stays in the panel
  }

  /** Closes the panel over the conversation; returns whether one was open. */
  closeOver() {
    const over = narrow.matches && Object.keys(this.panels).filter((n) => this.isOpen(n));
    for (const name of over || []) this.show(name, false);
    return Boolean(over?.length);
  }
}
