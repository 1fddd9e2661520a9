// The messages of the open conversation, drawn at most once per frame.

import { el, the } from "../dom.js";
import { t } from "../language/language.js";
import { shown, versions } from "../store/branches.js";
import { Follow } from "./follow.js";
import { MessageView } from "./message.js";

const EXAMPLES = [
  ["Explain something", "Explain to a ten-year-old why the sky is blue."],
  ["Write a story", "Write a short story about a lighthouse keeper and a lost bag."],
  ["Plan a day", "Give me a list of five things to do on a rainy day."],
  ["Some code", "Write a Python function that turns a word around."],
];

export class Thread {
  /** on: MessageView's callbacks, ask(text) for an example, and answer() for a question without an answer. */
  constructor(on) {
    this.on = on;
    this.place = the("thread");
    this.follow = new Follow(the("scroller"), the("jump"));
    this.views = new Map();
    this.conversation = null;
    this.turn = null;
    this.drawn = false;
  }

  /** Shows a conversation from its end. */
  open(conversation, turn) {
    this.views.clear();
    this.place.replaceChildren();
    this.set(conversation, turn);
    this.follow.toEnd();
  }

  /** Redraws the conversation after a change. */
  set(conversation, turn) {
    Object.assign(this, { conversation, turn });
    this.draw();
  }

  /** Schedules a redraw for new tokens; all tokens of a frame are drawn together. */
  soon() {
    if (this.drawn) return;
    this.drawn = true;
    requestAnimationFrame(() => {
      this.drawn = false;
      this.draw();
    });
  }

  draw() {
    const messages = shown(this.conversation);
    for (const [message, view] of this.views) {
      if (messages.includes(message)) continue;
      view.node.remove();
      this.views.delete(message);
    }
    const forgetful = messages.find((m) => m.overflow?.cut);
    messages.forEach((message, i) => {
      if (!this.views.has(message)) this.views.set(message, new MessageView(message, this.on));
      const view = this.views.get(message);
      if (this.place.children[i] !== view.node)
        this.place.insertBefore(view.node, this.place.children[i] ?? null);
      view.showVersions(versions(this.conversation, message));
      view.showForgotten(message === forgetful ? message.overflow.cut : 0);
      view.update(this.turn?.message === message ? this.turn : null, i === messages.length - 1);
    });
    while (this.place.children.length > messages.length) this.place.lastChild.remove();
    if (!messages.length) this.place.append(this.empty());
    else if (!this.turn && messages.at(-1).role === "user") this.place.append(this.unanswered());
    this.follow.grown();
  }

  /** Puts the focus on a version's arrow; after the last version that is the other arrow. */
  focusVersion(message, by) {
    this.views.get(message)?.focusVersion(by);
  }

  edit(message) {
    this.views.get(message)?.edit();
  }

  unanswered() {
    const button = el(
      "button",
      { type: "button", class: "quiet", onclick: () => this.on.answer() },
      t("Get an answer"),
    );
    return el("p", { class: "message-status" }, t("This question has no answer yet."), button);
  }

  empty() {
    const cards = EXAMPLES.map((example) => example.map((words) => t(words))).map(([title, text]) =>
      el(
        "button",
        { type: "button", class: "example", onclick: () => this.on.ask(text) },
        el("strong", {}, title),
        el("span", {}, text),
      ),
    );
    return el(
      "div",
      { class: "empty" },
      el("img", { src: "/page/icon.svg", alt: "", width: "56", height: "56" }),
      el("h2", {}, t("What shall we talk about?")),
      el("p", {}, t("The model runs on this server, and conversations stay in this browser.")),
      el("div", { class: "examples" }, ...cards),
    );
  }
}
