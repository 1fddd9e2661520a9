// Runs a model file that `satchel build` made, by the addon satchel.node and libsatchel. The event loop goes on while a token is
// computed.
import { createRequire } from "node:module";

const addon = createRequire(import.meta.url)(process.env.SATCHEL_NODE ?? "./satchel.node");

// What computes: this library, a worker process, or that for files without a plan.
export const Engine = { LIBRARY: 0, WORKER: 1, EITHER: 2 };

export class Model {
  #handle;

  // options: context in tokens, slots (replies at a time), threads, engine, worker (its program); what is left out is as the file or
  // the machine says.
  constructor(path, options = {}) {
    this.#handle = addon.open(path, options);
  }

  // Texts of the answer, each of whole characters. Leaving the loop ends the answer. options: temperature, max_tokens, seed,
  // top_k, top_p, min_p.
  async *generate(text, options = {}) {
    yield* this.#read(addon.generate(this.#handle, text, options));
  }

  // The same of a conversation, whose messages are as in OpenAI's API.
  async *chat(messages, options = {}) {
    yield* this.#read(addon.chat(this.#handle, JSON.stringify({ messages }), options));
  }

  async *#read(reply) {
    try {
      for (let piece; (piece = await addon.next(reply)) !== null; ) yield piece;
    } finally {
      addon.free(reply);
    }
  }
}
