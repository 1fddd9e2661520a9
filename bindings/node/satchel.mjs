// Runs a model file that `satchel build` made, by the addon satchel.node and libsatchel. The event loop goes on while a token is
// computed.
import { createRequire } from "node:module";

const addon = createRequire(import.meta.url)(process.env.SATCHEL_NODE ?? "./satchel.node");

export class Model {
  #handle;

  // options: context in tokens, slots (replies at a time), threads; what is left out is as the file or the machine says.
  constructor(path, options = {}) {
    this.#handle = addon.open(path, options);
  }

  // Texts of the answer, each of whole characters. Leaving the loop ends the answer. options: temperature, max_tokens, seed,
  // top_k, top_p, min_p.
  async *generate(text, options = {}) {
    const reply = addon.generate(this.#handle, text, options);
    try {
      for (let piece; (piece = await addon.next(reply)) !== null; ) yield piece;
    } finally {
      addon.free(reply);
    }
  }
}
