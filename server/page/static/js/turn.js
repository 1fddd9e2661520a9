// One answer in progress: requests it, writes its text into the message, and notifies a listener. It continues
// while the user reads another conversation.

import { answer } from "./api/answer.js";
import { pause } from "./api/pause.js";
import { Trouble } from "./api/trouble.js";
import { t } from "./language/language.js";
import { requestOf } from "./store/conversation.js";

const QUIET_MS = 800; // after so long without a token, ask the server whether it is loading the model
const LATER_MS = 1000;
const FILLED = 0.75; // of the context, by a conversation that was too long for it

export class Turn {
  /**
   * changed(turn): a delta arrived, or the answer ended. going: continue the message's text. room: the model's context
   * in tokens, null while unknown.
   */
  constructor(client, conversation, message, { changed, room, going = false }) {
    Object.assign(this, { client, conversation, message, changed, room, going });
    this.abort = new AbortController();
    this.waiting = ""; // why there is no token yet
    this.over = false;
    this.tokens = 0;
    this.began = performance.now();
    this.first = null; // time of the first token
    this.thought = null; // time of the first token after the thinking
  }

  /** Tokens per second so far. */
  get rate() {
    const seconds = (performance.now() - this.first) / 1000;
    return this.first !== null && seconds > 0.2 ? this.tokens / seconds : 0;
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    const { message } = this;
    Object.assign(message, { finish: "", trouble: "", overflow: null });
    const watch = setInterval(() => this.watch(), LATER_MS);
    setTimeout(() => this.watch(), QUIET_MS);
    try {
      await this.ask();
    } catch (error) {
      this.fail(error);
    } finally {
      clearInterval(watch);
      this.settle();
    }
  }

  /**
   * Sends the request, and repeats it while the model is loading. Of a conversation that is longer than the context the
   * oldest exchanges are left out, unless the user wants the error.
   */
  async ask() {
    const body = requestOf(this.conversation, this.message, { going: this.going });
    this.shifts = body.on_overflow === "shift";
    // In a context that shifts, an answer could go on for ever.
    if (this.shifts && this.room) body.max_tokens ??= this.room;
    for (;;) {
      try {
        for await (const part of answer(this.client, body, this.abort.signal)) this.take(part);
        return;
      } catch (error) {
        if (error.kind === "context" && this.forgets && this.shorten(body, error)) continue;
        if (error.kind !== "loading" || this.first !== null) throw error;
        this.wait(loading(error));
        await pause(error.after * 1000, this.abort.signal);
      }
    }
  }

  /** Leaves out the oldest exchanges of a request. Returns whether there was one beside the question. */
  shorten(body, { has, room }) {
    const { messages } = body;
    const lead = messages[0].role === "system" ? 1 : 0;
    const starts = messages.map((m, i) => (m.role === "user" ? i : 0)).filter((i) => i > lead);
    if (!starts.length) return false;
    const size = (from) => JSON.stringify(messages.slice(from)).length;
    const most = has ? (FILLED * size(0) * room) / has : 0;
    const from = starts.find((i) => size(i) <= most) ?? starts.at(-1);
    body.messages = [...messages.slice(0, lead), ...messages.slice(from)];
    this.whole ??= has;
    return true;
  }

  /** Whether the user wants older parts to be forgotten rather than an error. */
  get forgets() {
    return this.conversation.overflow !== "error";
  }

  take(part) {
    const { message } = this;
    if (part.content || part.reasoning || part.call) this.count(part);
    if (part.content) message.content += part.content;
    if (part.reasoning) message.reasoning += part.reasoning;
    if (part.call) takeCall(message.calls, part.call);
    if (part.finish) message.finish = part.finish;
    if (part.overflow) this.overflowed(part.overflow);
    if (part.usage) this.total(part);
    this.changed(this);
  }

  overflowed({ cut_tokens: cut, full }) {
    this.message.overflow = { cut, full, fixed: this.forgets && !this.shifts };
  }

  count(part) {
    const now = performance.now();
    this.tokens += 1;
    this.first ??= now;
    this.waiting = "";
    if (!part.reasoning) this.thought ??= now;
  }

  total({ usage, timings }) {
    const { message } = this;
    if (this.whole) {
      const { cut = 0, full = false } = message.overflow ?? {};
      const left = this.whole - usage.prompt_tokens;
      message.overflow = { cut: cut + left, full, fixed: !this.shifts };
    }
    message.counts = {
      prompt: usage.prompt_tokens,
      generated: usage.completion_tokens,
      rate: timings.predicted_per_second ?? this.rate,
      first: (this.first - this.began) / 1000,
    };
  }

  fail(error) {
    const { message } = this;
    if (error.name === "AbortError") {
      message.finish = "stopped";
      return;
    }
    if (!(error instanceof Trouble)) console.error(error);
    message.finish = "error";
    const own = error instanceof Trouble;
    const line = "The page failed on this answer: {error}.";
    message.trouble = own ? error.message : t(line, { error: error.message });
    this.kind = error.kind;
  }

  /** Counts the tokens of a stopped answer, whose final usage the server has not sent. */
  settle() {
    const { message } = this;
    if (message.reasoning)
      message.thinking = ((this.thought ?? performance.now()) - (this.first ?? this.began)) / 1000;
    if (!message.counts && this.tokens) {
      message.counts = { generated: this.tokens, rate: this.rate, first: (this.first - this.began) / 1000 };
    }
    this.over = true;
    this.waiting = "";
    this.changed(this);
  }

  wait(why) {
    this.waiting = why;
    this.changed(this);
  }

  /** Asks the server whether it is loading the model, while there is no token. */
  async watch() {
    if (this.over || this.first !== null) return;
    try {
      await this.client.send("/health", { signal: this.abort.signal });
      if (!this.over && this.first === null) this.wait(t("Reading the conversation"));
    } catch (error) {
      if (error.kind === "loading" && this.first === null) this.wait(loading(error));
    }
  }
}

function loading({ percent }) {
  return percent ? t("Loading the model: {percent} %", { percent }) : t("Loading the model");
}

function takeCall(calls, { index, id, name, arguments: more }) {
  calls[index] ??= { id, name: "", arguments: "" };
  if (name) calls[index].name = name;
  calls[index].arguments += more;
}
