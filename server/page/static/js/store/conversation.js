// A conversation as it is stored, a plain object, and its operations.
//
// {id, title, folder, created, updated, model, first, messages: [message]} and the settings of settings.js
// folder: the id of its folder {id, name}, "" for none; one that is gone counts as none
// messages: those of all branches, in order of creation; first, parent and next: see branches.js
// message: {id, parent, next, role: "user" | "assistant", content}; of a user also documents: [{name, text}],
// and of an assistant {reasoning, calls, finish, trouble, overflow, counts}
// overflow: {cut, full, fixed} where the context was full: tokens that the model no longer sees, whether the answer
// ended for it, and whether it could not go on for its fixed form; else null

import { t } from "../language/language.js";
import { shown } from "./branches.js";
import { documentText } from "./fence.js";
import { newId } from "./ids.js";
import { fieldsOf, settingsOf } from "./settings.js";
import { isObject } from "./tools.js";

const TITLE = 60;

export function newConversation({ model = "", ...settings } = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    folder: "",
    created: now,
    updated: now,
    model,
    ...settingsOf(settings),
    first: "",
    messages: [],
  };
}

export function question(content, documents = []) {
  return { id: newId(), parent: "", next: "", role: "user", content, documents };
}

export function reply() {
  return {
    id: newId(),
    parent: "",
    next: "",
    role: "assistant",
    content: "",
    reasoning: "",
    calls: [],
    finish: "",
    trouble: "",
    overflow: null,
    counts: null,
  };
}

/** The conversation's title: the user's, or the beginning of the first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const asked = shown(conversation).find((m) => m.role === "user");
  const first = asked?.content.trim().split("\n", 1)[0] || asked?.documents?.[0]?.name || "";
  return first.length > TITLE ? `${first.slice(0, TITLE).trimEnd()}…` : first || t("New chat");
}

/** Whether an answer holds nothing that a user could want back. */
export function isEmpty({ content, reasoning, calls = [] }) {
  return !content && !reasoning && !calls.length;
}

/**
 * The request body for an answer: the messages that are shown up to it, without empty answers. going: continue the
 * answer's text.
 */
export function requestOf(conversation, message, { going = false } = {}) {
  const path = shown(conversation);
  const said = path
    .slice(0, path.indexOf(message) + 1)
    .filter((m) => m.role === "user" || !isEmpty(m))
    .map((m) => (m.role === "user" || (going && m === message) ? textOf(m) : answerOf(m)));
  const system = conversation.system.trim();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  const body = { messages, ...fieldsOf(conversation, { going }) };
  if (conversation.model) body.model = conversation.model;
  return going ? { ...body, continue_final_message: true, add_generation_prompt: false } : body;
}

/** A message of text; its documents stand before it. */
function textOf({ role, content, documents = [] }) {
  return { role, content: [...documents.map(documentText), content].filter(Boolean).join("\n\n") };
}

/** An answer as the API takes it: its text with its calls. Thinking is sent only where it is all there is. */
function answerOf({ id, content, reasoning, calls = [] }) {
  const whole = calls.filter(isWhole);
  // A call that was cut off is none; its text tells the model how far it came.
  const broken = calls.filter((call) => !isWhole(call)).map((call) => `${call.name} ${call.arguments}`);
  const text = [content, ...broken].filter(Boolean).join("\n");
  const answer = { role: "assistant", content: text || (whole.length ? null : "") };
  if (whole.length) answer.tool_calls = whole.map((call, i) => callOf(call, `call_${id}_${i}`));
  else if (!text) answer.reasoning_content = reasoning;
  return answer;
}

function callOf({ id, name, arguments: given }, other) {
  return { id: id || other, type: "function", function: { name, arguments: given || "{}" } };
}

/** Whether a call has a name, and arguments that are a JSON object. */
function isWhole({ name, arguments: given }) {
  try {
    return Boolean(name) && isObject(JSON.parse(given || "{}"));
  } catch {
    return false;
  }
}

/** Whether the title or a message contains every word of a search. */
export function matches(conversation, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const text = [titleOf(conversation), ...conversation.messages.map((m) => m.content)]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}
