// Identifiers of conversations and messages: 24 random hexadecimal digits.

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

/** The identifier where the text is one, else a new one. */
export function idOf(text) {
  return typeof text === "string" && /^[\da-f]{24}$/.test(text) ? text : newId();
}
