// A conversation as it is stored, a plain object, and its operations.
//
// {id, title, created, updated, model, system, tools, forced, sampling: {name: number}, first, messages: [message]}
// tools: the JSON text of a list, "" for none; forced: each answer must call one of them
// messages: those of all branches, in order of creation; first, parent and next: see branches.js
// message: {id, parent, next, role: "user" | "assistant", content},
// and of an assistant also {reasoning, calls, finish, trouble, counts}

import { shown } from "./branches.js";
import { newId } from "./ids.js";
import { readTools } from "./tools.js";

const TITLE = 60;

export function newConversation({ model = "", system = "", tools = "", forced = false, sampling = {} } = {}) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    created: now,
    updated: now,
    model,
    system,
    tools,
    forced,
    sampling: { ...sampling },
    first: "",
    messages: [],
  };
}

export function question(content) {
  return { id: newId(), parent: "", next: "", role: "user", content };
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
    counts: null,
  };
}

/** The conversation's title: the user's, or the beginning of the first question. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first =
    shown(conversation)
      .find((m) => m.role === "user")
      ?.content.trim()
      .split("\n", 1)[0] ?? "";
  return first.length > TITLE ? `${first.slice(0, TITLE).trimEnd()}…` : first || "New chat";
}

/** Whether an answer holds nothing that a user could want back. */
export function isEmpty({ content, reasoning, calls }) {
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
    .filter((m) => m.role === "user" || m.content)
    .map(({ role, content }) => ({ role, content }));
  const system = conversation.system.trim();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  const body = { messages, ...conversation.sampling };
  if (conversation.model) body.model = conversation.model;
  const { tools } = readTools(conversation.tools ?? "");
  if (tools.length && !going) {
    body.tools = tools;
    if (conversation.forced) body.tool_choice = "required";
  }
  return going ? { ...body, continue_final_message: true, add_generation_prompt: false } : body;
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
