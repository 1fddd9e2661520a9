// A conversation's messages as a tree. Messages with one parent are versions of each other: an edited question is a
// version of the first one, an answer made again a version of the earlier one. Nothing is overwritten.
//
// Invariant: `parent` names a message of the conversation or is "", and there is no cycle. `next` (for the first
// message the conversation's `first`) names the version that is shown, or is "" where nothing follows.

import { newId } from "./ids.js";

function found(conversation, id) {
  return conversation.messages.find((m) => m.id === id) ?? null;
}

/** The shown messages, from the first to the last. */
export function shown(conversation) {
  const byId = new Map(conversation.messages.map((m) => [m.id, m]));
  const path = [];
  for (let m = byId.get(conversation.first); m; m = byId.get(m.next)) path.push(m);
  return path;
}

/** The message before this one, null for a first one. */
export function parentOf(conversation, message) {
  return found(conversation, message.parent);
}

/** All versions of a message, the oldest first. */
export function versions(conversation, message) {
  return conversation.messages.filter((m) => m.parent === message.parent);
}

/** The messages right after this one, the oldest first. */
export function followers(conversation, message) {
  return conversation.messages.filter((m) => m.parent === message.id);
}

/** Adds a message after another one (null: as a first one), and shows it. */
export function add(conversation, message, after) {
  message.parent = after?.id ?? "";
  conversation.messages.push(message);
  choose(conversation, message);
}

/** Shows a version, followed by what was shown after it the last time. */
export function choose(conversation, message) {
  const before = parentOf(conversation, message);
  if (before) before.next = message.id;
  else conversation.first = message.id;
}

/** Shows a message wherever it is: chooses it and every message before it. */
function reveal(conversation, message) {
  for (let m = message; m; m = parentOf(conversation, m)) choose(conversation, m);
}

/** Links a list of messages without branches. */
export function chained(conversation) {
  const { messages } = conversation;
  messages.forEach((m, i) => {
    m.parent = messages[i - 1]?.id ?? "";
    m.next = messages[i + 1]?.id ?? "";
  });
  return { ...conversation, first: messages[0]?.id ?? "" };
}

/** Adds a version of an answer with another text, followed by copies of the messages that are shown after it. */
export function revise(conversation, message, content) {
  const path = shown(conversation);
  let last = parentOf(conversation, message);
  for (const one of path.slice(path.indexOf(message))) {
    const copy = { ...structuredClone(one), id: newId(), next: "" };
    if (one === message) copy.content = content;
    add(conversation, copy, last);
    last = copy;
  }
}

/**
 * Takes out a message. A question goes with its answers; an answer goes alone where it has another version or
 * nothing follows it, and otherwise with its question, for models want questions and answers by turns. What follows
 * stays: after the answer's other version, or after the message before the question.
 */
export function remove(conversation, message) {
  const all = versions(conversation, message);
  const at = all.indexOf(message);
  const other = all[at - 1] ?? all[at + 1] ?? null;
  const question = parentOf(conversation, message);
  if (message.role === "assistant") {
    if (other) return takeOut(conversation, new Set([message]), other);
    if (!question || !followers(conversation, message).length)
      return takeOut(conversation, new Set([message]), question);
  }
  const asked = message.role === "assistant" ? question : message;
  return takeOut(conversation, exchange(conversation, asked), parentOf(conversation, asked));
}

/** A question with its answers. */
function exchange(conversation, asked) {
  const going = new Set([asked]);
  for (const one of going)
    followers(conversation, one).forEach((m) => m.role === "assistant" && going.add(m));
  return going;
}

/** Takes out messages; heir: the message that theirs follow from now on, null for none. */
function takeOut(conversation, going, heir) {
  const ids = new Set([...going].map((m) => m.id));
  const path = shown(conversation);
  const last = path.findLast((m) => !going.has(m)) ?? null;
  conversation.messages = conversation.messages.filter((m) => !going.has(m));
  for (const m of conversation.messages) if (ids.has(m.parent)) m.parent = heir?.id ?? "";
  relink(conversation);
  if (!path.some((m) => going.has(m))) return;
  const below = last && lineage(conversation, last).includes(heir);
  reveal(conversation, heir && !below ? heir : last);
}

function lineage(conversation, message) {
  const line = [];
  for (let m = message; m; m = parentOf(conversation, m)) line.push(m);
  return line;
}

/** Where the shown version is none of the message's own, the latest one is shown. */
function relink(conversation) {
  const { messages } = conversation;
  const latest = new Map(messages.map((m) => [m.parent, m.id]));
  const parents = new Map(messages.map((m) => [m.id, m.parent]));
  for (const m of messages) if (parents.get(m.next) !== m.id) m.next = latest.get(m.id) ?? "";
  if (parents.get(conversation.first) !== "") conversation.first = latest.get("") ?? "";
}

/** Whether untrusted messages are a tree; where they are, what they show is mended. */
export function isTree(conversation) {
  const parents = new Map(conversation.messages.map((m) => [m.id, m.parent]));
  if (parents.size !== conversation.messages.length) return false;
  const sound = new Set([""]);
  for (const { id } of conversation.messages) {
    const line = new Set();
    let at = id;
    for (; !sound.has(at); at = parents.get(at)) {
      if (line.has(at) || !parents.has(at)) return false;
      line.add(at);
    }
    for (const one of line) sound.add(one);
  }
  relink(conversation);
  return true;
}

/**
 * Adds the messages that a copy of the conversation has alone; of the rest the later of the two stays. Returns whether
 * anything changed. Messages keep their identity, for one may be an answer under way.
 */
export function merge(conversation, { messages, ...rest }) {
  const own = new Map(conversation.messages.map((m) => [m.id, m]));
  const fresh = messages.filter((m) => !own.has(m.id));
  const later = rest.updated > conversation.updated;
  if (later) {
    for (const m of messages) if (own.has(m.id)) Object.assign(own.get(m.id), m);
    Object.assign(conversation, rest);
  }
  conversation.messages.push(...fresh);
  relink(conversation);
  return later || fresh.length > 0;
}

/** Takes over the messages of another tab, except the one that this tab is writing; which are shown stays. */
export function takeOver(conversation, messages, writing) {
  const own = new Map(conversation.messages.map((m) => [m.id, m]));
  for (const m of messages) {
    const mine = own.get(m.id);
    if (!mine) conversation.messages.push(m);
    else if (mine !== writing) Object.assign(mine, m, { parent: mine.parent, next: mine.next });
  }
  relink(conversation);
}

/** A function that puts the messages back as they are now, and keeps those that are added meanwhile. */
export function snapshot(conversation) {
  const links = conversation.messages.map((m) => [m, m.parent, m.next]);
  const { first } = conversation;
  return () => {
    const before = new Set(links.map(([m]) => m));
    const fresh = conversation.messages.filter((m) => !before.has(m));
    const last = shown(conversation).at(-1);
    for (const [m, parent, next] of links) Object.assign(m, { parent, next });
    conversation.messages = [...before, ...fresh];
    conversation.first = first;
    if (fresh.includes(last)) reveal(conversation, last);
  };
}
