// One message of the thread.

import { el, say } from "../dom.js";
import { icon, iconButton } from "../icons.js";
import { number, t } from "../language/language.js";
import { renderMarkdown } from "../markdown/render.js";
import { copyButton } from "./copy.js";
import { documentPart } from "./documents.js";
import { grow } from "./composer.js";

const NAMES = { user: "You", assistant: "Satchel" };

export class MessageView {
  /** on: {edit(message, text), again(message), onward(message), remove(message), step(message, by), overflow()}. */
  constructor(message, on) {
    Object.assign(this, { message, on, text: null });
    this.body = el("div", { class: "message-body" });
    this.reasoning = message.role === "assistant" ? reasoningPart() : null;
    this.calls = el("div", { class: "calls" });
    this.forgot = el("p", { class: "context-note", hidden: true });
    this.status = el("p", { class: "message-status", hidden: true });
    this.trouble = el("div", { class: "trouble", role: "alert", hidden: true });
    this.facts = el("span", { class: "facts" });
    this.versions = versionsPart((by) => on.step(message, by));
    this.tools = el("div", { class: "message-tools" }, this.versions.node, ...this.buttons(), this.facts);
    const name = el("h2", { class: "visually-hidden" }, t(NAMES[message.role]));
    const before =
      message.role === "assistant" ? [this.reasoning.node] : (message.documents ?? []).map(documentPart);
    const after = message.role === "assistant" ? [this.calls, this.status, this.forgot, this.trouble] : [];
    const parts = [name, ...before, this.body, ...after, this.tools];
    this.node = el("article", { class: `message ${message.role}` }, ...parts);
    this.update();
  }

  buttons() {
    const { message, on } = this;
    const made = [
      copyButton(t("Copy"), () => message.content),
      iconButton("pencil", t("Edit"), () => this.edit()),
    ];
    if (message.role === "assistant")
      made.push(iconButton("again", t("Answer again"), () => on.again(message)));
    return [...made, iconButton("trash", t("Delete"), () => on.remove(message))];
  }

  /** turn: the turn that is writing this message, if any. last: whether this is the last message. */
  update(turn = null, last = false) {
    const { message } = this;
    this.node.classList.toggle("coming", Boolean(turn));
    this.node.classList.toggle("last", last);
    if (this.text !== message.content) this.showText();
    if (message.role === "user") return;
    this.showReasoning(turn);
    this.showCalls();
    this.showStatus(turn);
    this.showTrouble(last && !turn);
    say(this.facts, turn ? rateLine(turn) : factLine(message.counts));
    this.tools.hidden = Boolean(turn) && !turn.rate;
  }

  /** Shows which of its versions the message is, with arrows to the others. */
  showVersions(all) {
    const { node, back, place, forth } = this.versions;
    const at = all.indexOf(this.message);
    node.hidden = all.length < 2;
    this.node.classList.toggle("branched", all.length > 1);
    back.disabled = at === 0;
    forth.disabled = at === all.length - 1;
    say(place, `${at + 1} / ${all.length}`);
    node.setAttribute("aria-label", t("Version {at} of {all}", { at: at + 1, all: all.length }));
  }

  focusVersion(by) {
    const { back, forth } = this.versions;
    const [wanted, other] = by < 0 ? [back, forth] : [forth, back];
    (wanted.disabled ? other : wanted).focus();
  }

  showText() {
    this.text = this.message.content;
    if (this.message.role === "user") say(this.body, this.text);
    else renderMarkdown(this.body, this.text);
    this.body.hidden = !this.text;
  }

  showReasoning(turn) {
    const { node, summary, text } = this.reasoning;
    const { reasoning, content, thinking } = this.message;
    node.hidden = !reasoning;
    if (!reasoning) return;
    const busy = Boolean(turn) && !content;
    node.classList.toggle("busy", busy);
    const long = thinking >= 1 ? t("Thought for {time}", { time: seconds(thinking) }) : t("Thoughts");
    say(summary, busy ? t("Thinking…") : long);
    say(text, reasoning.trim());
  }

  showCalls() {
    const { calls } = this.message;
    while (this.calls.childNodes.length < calls.length) this.calls.append(callPart());
    calls.forEach((call, i) => {
      const [name, args] = this.calls.childNodes[i].querySelectorAll(".call-name, pre");
      say(name, call.name);
      say(args, pretty(call.arguments));
    });
  }

  showStatus(turn) {
    const waits = turn && !this.message.content && !this.message.reasoning && !this.message.calls.length;
    const line = waits ? turn.waiting : turn ? "" : t(endLine(this.message));
    this.status.classList.toggle("waits", Boolean(waits));
    this.status.hidden = !waits && !line;
    if (this.status.dataset.line === line) return;
    this.status.dataset.line = line;
    const more =
      line && !waits && this.message.content && goesOn(this.message) ? [this.onwardButton()] : [];
    this.status.replaceChildren(line, ...more);
  }

  /** Says that the model no longer sees all of the conversation, with a way to the setting. */
  showForgotten(count) {
    this.forgot.hidden = !count;
    if (!count || this.forgot.hasChildNodes()) return;
    const line = "The context is full: the model no longer sees an older part of this chat ({count} tokens).";
    const button = el("button", { type: "button", class: "quiet", onclick: () => this.on.overflow() }, t("Choose"));
    button.ariaLabel = t("Choose what a full context does");
    this.forgot.append(t(line, { count: number(count) }), button);
  }

  onwardButton() {
    const onclick = () => this.on.onward(this.message);
    return el("button", { type: "button", class: "quiet", onclick }, icon("onward"), t("Continue"));
  }

  /** retry: a button to try again. */
  showTrouble(retry) {
    const line = this.message.trouble;
    this.trouble.hidden = !line;
    const key = `${line}${retry}`;
    if (this.trouble.dataset.key === key) return;
    this.trouble.dataset.key = key;
    const onclick = () => this.on.again(this.message);
    const button = retry
      ? el("button", { type: "button", class: "quiet", onclick }, icon("again"), t("Try again"))
      : null;
    this.trouble.replaceChildren(...[el("span", {}, line), button].filter(Boolean));
  }

  /** Turns the text into a field; an edited question is sent again. */
  edit() {
    const asks = this.message.role === "user";
    const field = el("textarea", { class: "edit-field", rows: "2", "aria-label": t("Edit the message") });
    field.value = this.message.content;
    const before = document.activeElement;
    const close = () => {
      form.replaceWith(this.body);
      before?.focus({ preventScroll: true });
    };
    const save = () => {
      const text = field.value.trim();
      close();
      const { content, documents = [] } = this.message;
      if ((text || documents.length) && (asks || text !== content)) this.on.edit(this.message, text);
    };
    const keys = (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (
        event.key === "Enter" &&
        (event.ctrlKey || event.metaKey || (asks && !event.shiftKey)) &&
        !event.isComposing
      ) {
        event.preventDefault();
        save();
      }
    };
    const buttons = el(
      "div",
      { class: "edit-buttons" },
      el("button", { type: "button", class: "quiet", onclick: close }, t("Cancel")),
      el("button", { type: "button", class: "strong", onclick: save }, t(asks ? "Send" : "Save")),
    );
    const form = el("div", { class: "edit", onkeydown: keys }, field, buttons);
    field.addEventListener("input", () => grow(field));
    this.body.replaceWith(form);
    grow(field);
    field.focus();
  }
}

/** Why an answer ended before the model did, "" where it did not. */
function endLine({ finish, overflow }) {
  if (finish === "stopped") return "Stopped.";
  if (finish !== "length") return "";
  if (!overflow?.full) return "Stopped at the limit of tokens.";
  return overflow.fixed
    ? "Stopped: the context is full, and an answer of a fixed form cannot go on in one."
    : "Stopped: the context is full.";
}

function goesOn({ finish, overflow }) {
  return finish === "length" && !overflow?.full;
}

function versionsPart(step) {
  const back = iconButton("back", t("Earlier version"), () => step(-1));
  const forth = iconButton("forth", t("Later version"), () => step(1));
  const place = el("span", { class: "version-place" });
  const node = el("span", { class: "versions", role: "group", hidden: true }, back, place, forth);
  return { node, back, place, forth };
}

function reasoningPart() {
  const summary = el("span");
  const text = el("div", { class: "reasoning-text" });
  return {
    node: el("details", { class: "reasoning", hidden: true }, el("summary", {}, summary), text),
    summary,
    text,
  };
}

function callPart() {
  const head = el(
    "div",
    { class: "call-head" },
    icon("tool"),
    el("span", {}, `${t("Calls")} `),
    el("code", { class: "call-name" }),
  );
  return el("div", { class: "call" }, head, el("pre", { tabindex: "0" }));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // incomplete JSON: the call is still being written
  }
}

function rateLine(turn) {
  return turn.rate ? rateText(turn.rate) : "";
}

function rateText(rate) {
  return t("{rate} tokens/s", { rate: rate.toFixed(rate < 10 ? 1 : 0) });
}

function factLine(counts) {
  if (!counts) return "";
  const { generated, rate, first } = counts;
  const parts = [t("{count} tokens", { count: number(generated) })];
  if (rate) parts.push(rateText(rate));
  if (Number.isFinite(first)) parts.push(t("first after {time}", { time: seconds(first) }));
  return parts.join(" · ");
}

function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
}
