// The input field for messages.

import { say, the } from "../dom.js";
import { icon } from "../icons.js";
import { t } from "../language/language.js";
import { Documents } from "./documents.js";

export class Composer {
  /** on: {send(text, documents), stop(), editLast()}. client: reads documents. */
  constructor(client, on) {
    this.field = the("question");
    this.button = the("send");
    this.on = on;
    this.busy = null;
    this.documents = new Documents(client, () => this.changed());
    this.field.addEventListener("input", () => this.changed());
    this.field.addEventListener("keydown", (event) => this.key(event));
    the("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) on.stop();
      else this.send();
    });
    this.show(false);
  }

  key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.busy) this.send();
    } else if (event.key === "ArrowUp" && !this.field.value) {
      if (this.on.editLast()) event.preventDefault();
    }
  }

  send() {
    const text = this.field.value.trim();
    if (!this.ready) return;
    this.set("");
    this.on.send(text, this.documents.take());
  }

  /** Whether there is something to send, and no document is still being read. */
  get ready() {
    const { list, reading } = this.documents;
    return !reading && Boolean(this.field.value.trim() || list.length);
  }

  set(text) {
    this.field.value = text;
    this.changed();
  }

  /** Focuses the field, except on a phone, where focus opens the keyboard. */
  focus() {
    if (matchMedia("(hover: hover)").matches) this.field.focus();
  }

  changed() {
    grow(this.field);
    this.button.disabled = !this.busy && !this.ready;
  }

  /** busy: an answer is in progress, and the button stops it. */
  show(busy) {
    if (this.busy !== busy) {
      this.busy = busy;
      const label = t(busy ? "Stop the answer" : "Send");
      this.button.replaceChildren(icon(busy ? "stop" : "send"));
      this.button.setAttribute("aria-label", label);
      this.button.title = label;
      this.button.classList.toggle("stops", busy);
      say(the("hint"), t(busy ? "Esc stops the answer" : "Enter sends, Shift+Enter begins a new line"));
    }
    this.changed();
  }
}

/** Makes a text field as high as its text; its style sets the maximum. */
export function grow(field) {
  field.style.blockSize = "auto";
  field.style.blockSize = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
