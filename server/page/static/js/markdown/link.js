// The addresses that a link may have. A model's output is untrusted.

const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** The absolute address; null for a scheme other than http, https and mailto, and for one with a user name. */
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
