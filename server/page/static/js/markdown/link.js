// The addresses that a link may have. A model's output is untrusted.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** The address in its full form, or null where a link to it could do more than lead to a page or a letter. */
export function safeAddress(text) {
  let address;
  try {
    address = new URL(text.trim());
  } catch {
    return null;
  }
  if (!SCHEMES.has(address.protocol)) return null;
  // A name before the host reads like the host: https://good.example@bad.example/
  return address.username || address.password ? null : address.href;
}
