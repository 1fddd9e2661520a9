// All conversations: objects in memory, copies in the database, and changes announced to other tabs.

import { Database } from "./database.js";
import { merge } from "./branches.js";
import { matches, newConversation } from "./conversation.js";

const CHANNEL = "satchel-conversations";

export class Library {
  /** changed(id): another tab changed or deleted a conversation. */
  static async open(changed) {
    const library = new Library(await Database.open());
    for (const one of await library.database.all()) library.held.set(one.id, one);
    library.listen(changed);
    return library;
  }

  constructor(database) {
    this.database = database;
    this.held = new Map();
    this.channel = "BroadcastChannel" in window ? new BroadcastChannel(CHANNEL) : null;
  }

  get lasting() {
    return this.database.lasting;
  }

  get(id) {
    return this.held.get(id) ?? null;
  }

  /** The conversations that match a search, the latest first. */
  list(search = "") {
    const found = [...this.held.values()].filter((c) => matches(c, search));
    return found.sort((a, b) => b.updated - a.updated);
  }

  create(settings) {
    return newConversation(settings);
  }

  /** Stores a conversation's current state. */
  async keep(conversation, { touched = true } = {}) {
    if (touched) conversation.updated = Date.now();
    this.held.set(conversation.id, conversation);
    await this.database.put(conversation);
    this.channel?.postMessage(conversation.id);
  }

  async remove(conversation) {
    this.held.delete(conversation.id);
    await this.database.delete(conversation.id);
    this.channel?.postMessage(conversation.id);
  }

  /** Adds imported conversations to those that are here. Returns how many brought something new. */
  async take(conversations) {
    let count = 0;
    for (const one of conversations) {
      const here = this.get(one.id);
      if (here && !merge(here, one)) continue;
      await this.keep(here ?? one, { touched: false });
      count += 1;
    }
    return count;
  }

  listen(changed) {
    if (!this.channel) return;
    this.channel.onmessage = async ({ data: id }) => {
      const stored = (await this.database.all()).find((c) => c.id === id);
      if (stored) this.held.set(id, stored);
      else this.held.delete(id);
      changed(id);
    };
  }
}
