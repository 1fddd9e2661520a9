// The browser's database of conversations (IndexedDB). Without it (in a private window), they last as long as the page.

import { t } from "../language/language.js";
import { chained } from "./branches.js";
import { settingsOf } from "./settings.js";

const NAME = "satchel";
const STORE = "conversations";
const VERSION = 2; // 1: messages without branches

export class Database {
  /** Opens the database; `lasting` is false where conversations last only as long as the page. */
  static async open() {
    try {
      const request = indexedDB.open(NAME, VERSION);
      request.onupgradeneeded = ({ oldVersion }) => upgrade(request, oldVersion);
      const opened = await done(request);
      // Another tab with a newer page may upgrade the database; this page opens it again at its next load.
      opened.onversionchange = () => opened.close();
      return new Database(opened);
    } catch {
      return new Database(null);
    }
  }

  constructor(opened) {
    this.opened = opened;
    this.lasting = opened !== null;
  }

  async all() {
    return this.opened ? done(this.store("readonly").getAll()) : [];
  }

  /** Stores a conversation; throws an Error with a one-line message where the browser has no room for it. */
  async put(conversation) {
    if (!this.opened) return;
    try {
      await done(this.store("readwrite").put(structuredClone(conversation)));
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      throw new Error(full ? t(FULL) : t(NOT_KEPT, { error: error?.name }));
    }
  }

  async delete(id) {
    if (this.opened) await done(this.store("readwrite").delete(id));
  }

  store(mode) {
    return this.opened.transaction(STORE, mode).objectStore(STORE);
  }
}

function upgrade({ result, transaction }, oldVersion) {
  if (oldVersion < 1) {
    result.createObjectStore(STORE, { keyPath: "id" });
    return;
  }
  transaction.objectStore(STORE).openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    cursor.update({ ...chained(cursor.value), ...settingsOf(cursor.value) });
    cursor.continue();
  };
}

const NOT_KEPT = "The browser did not keep this conversation ({error}). Export it.";
const FULL = "The browser's storage is full. Export conversations, then delete some.";

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
