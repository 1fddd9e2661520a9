// The browser's database of conversations and their folders (IndexedDB). Without it (in a private window), they last as
// long as the page.

import { t } from "../language/language.js";
import { chained } from "./branches.js";
import { settingsOf } from "./settings.js";

const NAME = "satchel";
const VERSION = 3; // 1: messages without branches, 2: no folders

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

  /** All objects of a store, "conversations" or "folders". */
  async all(store) {
    return this.opened ? done(this.store(store, "readonly").getAll()) : [];
  }

  /** Stores an object; throws an Error with a one-line message where the browser has no room for it. */
  async put(store, object) {
    if (!this.opened) return;
    try {
      await done(this.store(store, "readwrite").put(structuredClone(object)));
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      throw new Error(full ? t(FULL) : t(NOT_KEPT, { error: error?.name }));
    }
  }

  async delete(store, id) {
    if (this.opened) await done(this.store(store, "readwrite").delete(id));
  }

  store(name, mode) {
    return this.opened.transaction(name, mode).objectStore(name);
  }
}

function upgrade({ result, transaction }, oldVersion) {
  result.createObjectStore("folders", { keyPath: "id" });
  if (oldVersion < 1) {
    result.createObjectStore("conversations", { keyPath: "id" });
    return;
  }
  transaction.objectStore("conversations").openCursor().onsuccess = ({ target: { result: cursor } }) => {
    if (!cursor) return;
    const branched = oldVersion < 2 ? chained(cursor.value) : cursor.value;
    cursor.update({ ...branched, folder: "", ...settingsOf(cursor.value) });
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
