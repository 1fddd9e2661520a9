// All conversations: objects in memory, copies in the database, and changes announced to other tabs.

import { Database } from "./database.js";
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

  /** Adds imported conversations; of two with one id the later wins. Returns how many were added. */
  async take(conversations) {
    const fresh = conversations.filter((c) => !(this.get(c.id)?.updated >= c.updated));
    for (const one of fresh) await this.keep(one, { touched: false });
    return fresh.length;
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
