// Small settings of this browser. Where it keeps nothing they last as long as the page.

const PREFIX = "satchel.";
const memory = new Map();

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** A setting, or `other` where there is none. */
export function getPref(name, other) {
  return memory.get(name) ?? read(localStorage, name) ?? other;
}

export function setPref(name, value) {
  memory.set(name, value);
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // It stays in memory.
  }
}

/** The API key: kept until the tab is closed, or for good where the user wants it. */
export function getKey() {
  return memory.get("key") ?? read(sessionStorage, "key") ?? read(localStorage, "key") ?? "";
}

export function setKey(key, lasting) {
  memory.set("key", key);
  try {
    for (const storage of [sessionStorage, localStorage]) storage.removeItem(`${PREFIX}key`);
    (lasting ? localStorage : sessionStorage).setItem(`${PREFIX}key`, JSON.stringify(key));
  } catch {
    // It stays in memory.
  }
}
