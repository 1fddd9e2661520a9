// Preferences in the browser's local storage. Where that is blocked, they last as long as the page.

const PREFIX = "satchel.";
const memory = new Map();

function read(storage, name) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name));
  } catch {
    return null;
  }
}

/** A preference's value, or `other` where none is stored. */
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

/** A value that lasts as long as this tab, through reloads. */
export function getOfTab(name, other) {
  return read(sessionStorage, name) ?? other;
}

export function setOfTab(name, value) {
  try {
    sessionStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A reload forgets it.
  }
}

/** The API key. It is stored until the tab is closed, or permanently where the user wants that. */
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
