// The browser's database of conversations. Where it has none (a private window may), they last as long as the page.

const NAME = "satchel";
const STORE = "conversations";

export class Database {
  /** Opens it; `lasting` says whether what is put there is kept. */
  static async open() {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
      const opened = await done(request);
      // Another tab with a newer page may change the database; this one then asks again when it is loaded anew.
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

  /** An Error with one line where the browser has no room for it. */
  async put(conversation) {
    if (!this.opened) return;
    try {
      await done(this.store("readwrite").put(structuredClone(conversation)));
    } catch (error) {
      const full = error?.name === "QuotaExceededError";
      throw new Error(
        full ? FULL : `The browser did not keep this conversation (${error?.name}). Export it.`,
      );
    }
  }

  async delete(id) {
    if (this.opened) await done(this.store("readwrite").delete(id));
  }

  store(mode) {
    return this.opened.transaction(STORE, mode).objectStore(STORE);
  }
}

const FULL = "The browser's storage is full. Export conversations, then delete some.";

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
