// One answer in progress: requests it, writes its text into the message, and notifies a listener. It continues
// while the user reads another conversation.

import { answer } from "./api/answer.js";
import { Trouble } from "./api/trouble.js";
import { t } from "./language/language.js";
import { requestOf } from "./store/conversation.js";

const QUIET_MS = 800; // after so long without a token, ask the server whether it is loading the model
const LATER_MS = 1000;

export class Turn {
  /** changed(turn): a delta arrived, or the answer ended. going: continue the message's text. */
  constructor(client, conversation, message, { changed, going = false }) {
    Object.assign(this, { client, conversation, message, changed, going });
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
    Object.assign(message, { finish: "", trouble: "" });
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

  /** Sends the request, and repeats it while the model is loading. */
  async ask() {
    const body = requestOf(this.conversation, this.message, { going: this.going });
    for (;;) {
      try {
        for await (const part of answer(this.client, body, this.abort.signal)) this.take(part);
        return;
      } catch (error) {
        if (error.kind !== "loading" || this.first !== null) throw error;
        this.wait(loading(error));
        await pause(error.after * 1000, this.abort.signal);
      }
    }
  }

  take(part) {
    const { message } = this;
    if (part.content || part.reasoning || part.call) this.count(part);
    if (part.content) message.content += part.content;
    if (part.reasoning) message.reasoning += part.reasoning;
    if (part.call) takeCall(message.calls, part.call);
    if (part.finish) message.finish = part.finish;
    if (part.usage) this.total(part);
    this.changed(this);
  }

  count(part) {
    const now = performance.now();
    this.tokens += 1;
    this.first ??= now;
    this.waiting = "";
    if (!part.reasoning) this.thought ??= now;
  }

  total({ usage, timings }) {
    this.message.counts = {
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

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stopped = () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    };
    if (signal.aborted) stopped();
    signal.addEventListener("abort", stopped, { once: true });
  });
}
