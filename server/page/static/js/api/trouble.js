// An error with a one-line message that says what to do.

import { number, t } from "../language/language.js";

/**
 * kind: away, key, loading, busy, context, missing, broken, refused. percent: of a load. has, room: tokens of the
 * prompt and of the context, 0 where they are unknown.
 */
export class Trouble extends Error {
  constructor(kind, line, { percent = 0, after = 1, has = 0, room = 0 } = {}) {
    super(line);
    Object.assign(this, { kind, percent, after, has, room });
  }
}

/** The server did not answer at all. */
export function away() {
  return new Trouble("away", t("The server does not answer. Check that it runs, then try again."));
}

/** The Trouble of an error body. status and after (Retry-After in seconds) are the response's; null in a stream. */
export function troubleOf(body, status = null, after = 1) {
  const said = body?.error ?? {};
  const line =
    typeof said.message === "string" ? said.message : typeof body?.error === "string" ? body.error : "";
  if (status === 401) return new Trouble("key", t("The server asks for an API key."));
  if (said.code === "loading") return new Trouble("loading", line, { percent: said.percent ?? 0, after });
  if (said.code === "context_length_exceeded") {
    const { n_prompt_tokens: has = 0, n_ctx: room = 0 } = said;
    return new Trouble("context", tooLong(has, room), { has, room });
  }
  if (status === 503 || status === 429 || status === 529) {
    const busy = t("The server is busy. Try again in a moment. ({why})", { why: line || status });
    return new Trouble("busy", busy, { after });
  }
  if (status === 404) return new Trouble("missing", line || t("The server does not know this address."));
  if (status === null || status >= 500) {
    const why = line || `status ${status}`;
    return new Trouble("broken", t("The server broke off: {why}. Try again.", { why }));
  }
  return new Trouble("refused", line || t("The server refused this with status {status}.", { status }));
}

function tooLong(has, room) {
  if (!has || !room)
    return t("This conversation is too long for the model. Delete earlier messages, or begin a new chat.");
  const line =
    "This conversation is too long for the model. It has {has} tokens, and there is room for {room}. " +
    "Delete earlier messages, or begin a new chat.";
  return t(line, { has: number(has), room: number(room) });
}
