// Exports conversations as files, and imports those of JSON. An imported file is untrusted: only known fields are taken.

import { t } from "../language/language.js";
import { chained, isTree } from "./branches.js";
import { idOf } from "./ids.js";

const KIND = "satchel-conversations";
const VERSION = 2; // 1: messages without branches
const MOST_BYTES = 64 << 20;
const ROLES = new Set(["user", "assistant"]);

export function exported(conversations, folders) {
  return JSON.stringify({ kind: KIND, version: VERSION, folders, conversations }, null, 1);
}

/** Downloads a text as a file of this media type. */
export function download(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** {conversations, folders} of a file; throws an Error with a one-line message where it holds none. */
export async function imported(file) {
  const { name } = file;
  if (file.size > MOST_BYTES)
    throw new Error(t("{name} has more than {most} MB: split it.", { name, most: MOST_BYTES >> 20 }));
  let found;
  try {
    found = JSON.parse(await file.text());
  } catch {
    throw new Error(t("{name} is no JSON: choose a file that was exported here.", { name }));
  }
  if (found?.kind !== KIND || !Array.isArray(found.conversations)) {
    throw new Error(t("{name} holds no conversations: choose a file that was exported here.", { name }));
  }
  const { version } = found;
  if (version !== 1 && version !== VERSION) {
    throw new Error(t("{name} is of another version of the page: update this server.", { name }));
  }
  const conversations = found.conversations.map((c, i) => {
    const one = conversation(c, version);
    if (one) return one;
    throw new Error(t("{name}: conversation {number} is not whole: export it again.", { name, number: i + 1 }));
  });
  return { conversations, folders: folders(found.folders) };
}

/** The known fields of an exported conversation; null where it is not whole. */
function conversation(c, version) {
  const messages = Array.isArray(c?.messages) ? c.messages : null;
  if (!messages || !messages.every((m) => ROLES.has(m?.role) && typeof m.content === "string")) {
    return null;
  }
  const now = Date.now();
  const made = {
    id: idOf(c.id),
    title: text(c.title),
    folder: text(c.folder),
    created: number(c.created, now),
    updated: number(c.updated, now),
    model: text(c.model),
    system: text(c.system),
    tools: text(c.tools),
    forced: c.forced === true,
    sampling: numbers(c.sampling),
    schema: text(c.schema),
    stop: text(c.stop),
    thinking: text(c.thinking),
    overflow: c.overflow === "error" ? "error" : "",
    first: text(c.first),
    messages: messages.map(message),
  };
  if (version === 1) return chained(made);
  return isTree(made) ? made : null;
}

function message(m) {
  const base = { id: idOf(m.id), parent: text(m.parent), next: text(m.next), role: m.role, content: m.content };
  if (m.role === "user") return { ...base, documents: documents(m.documents) };
  const calls = Array.isArray(m.calls)
    ? m.calls.map((c) => ({ id: text(c?.id), name: text(c?.name), arguments: text(c?.arguments) }))
    : [];
  const counts = m.counts && typeof m.counts === "object" ? numbers(m.counts) : null;
  return {
    ...base,
    reasoning: text(m.reasoning),
    calls,
    finish: text(m.finish),
    trouble: text(m.trouble),
    overflow: overflow(m.overflow),
    counts,
  };
}

function overflow(found) {
  const { cut, full, fixed } = found ?? {};
  return found ? { cut: number(cut, 0), full: full === true, fixed: fixed === true } : null;
}

function folders(found) {
  const given = Array.isArray(found) ? found : [];
  return given.map((one) => ({ id: text(one?.id), name: text(one?.name) })).filter((one) => one.id && one.name);
}

function documents(found) {
  const given = Array.isArray(found) ? found : [];
  return given.map((one) => ({ name: text(one?.name), text: text(one?.text) })).filter((one) => one.text);
}

const text = (value) => (typeof value === "string" ? value : "");
const number = (value, other) => (Number.isFinite(value) ? value : other);

function numbers(found) {
  return Object.fromEntries(Object.entries(found ?? {}).filter(([, value]) => Number.isFinite(value)));
}
