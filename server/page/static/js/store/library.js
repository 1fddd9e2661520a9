// All conversations and their folders: objects in memory, copies in the database, and changes announced to other tabs.

import { Database } from "./database.js";
import { merge } from "./branches.js";
import { matches, newConversation } from "./conversation.js";
import { newId } from "./ids.js";

const CHANNEL = "satchel-conversations";

export class Library {
  /** changed(id): another tab changed or deleted a conversation; "": it changed the folders. */
  static async open(changed) {
    const library = new Library(await Database.open());
    for (const one of await library.database.all("conversations")) library.held.set(one.id, one);
    await library.readFolders();
    library.listen(changed);
    return library;
  }

  constructor(database) {
    this.database = database;
    this.held = new Map();
    this.folders = []; // {id, name}, by name
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
    await this.database.put("conversations", conversation);
    this.channel?.postMessage(conversation.id);
  }

  async remove(conversation) {
    this.held.delete(conversation.id);
    await this.database.delete("conversations", conversation.id);
    this.channel?.postMessage(conversation.id);
  }

  /** The folder of a conversation, null for none. */
  folderOf(conversation) {
    return this.folders.find((folder) => folder.id === conversation.folder) ?? null;
  }

  /** Stores a folder, by default a new one, under a name. */
  async keepFolder(name, { id } = { id: newId() }) {
    const folder = { id, name };
    this.setFolders([...this.folders.filter((one) => one.id !== id), folder]);
    await this.database.put("folders", folder);
    this.channel?.postMessage("");
    return folder;
  }

  /** Removes a folder; its conversations stay. */
  async removeFolder({ id }) {
    this.setFolders(this.folders.filter((one) => one.id !== id));
    await this.database.delete("folders", id);
    this.channel?.postMessage("");
  }

  async readFolders() {
    this.setFolders(await this.database.all("folders"));
  }

  setFolders(folders) {
    this.folders = folders.sort((a, b) => a.name.localeCompare(b.name));
  }

  /** Adds imported folders and conversations to those that are here. Returns how many of these are new. */
  async take({ conversations, folders }) {
    for (const one of folders)
      if (!this.folders.some(({ id }) => id === one.id)) await this.keepFolder(one.name, one);
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
      const stored = (await this.database.all("conversations")).find((c) => c.id === id);
      if (stored) this.held.set(id, stored);
      else this.held.delete(id);
      if (this.lasting) await this.readFolders();
      changed(id);
    };
  }
}
