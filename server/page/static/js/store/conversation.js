// A conversation as it is stored, a plain object, and its operations.
//
// {id, title, created, updated, model, system, tools, forced, sampling: {name: number}, messages: [message]}
// tools: the JSON text of a list, "" for none; forced: each answer must call one of them
// message: {id, role: "user" | "assistant", content}, and of an assistant also {reasoning, calls, finish, trouble, counts}

import { readTools } from "./tools.js";

const TITLE = 60;

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join(
    "",
  );
}

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
    messages: [],
  };
}

export function question(content) {
  return { id: newId(), role: "user", content };
}

export function reply() {
  return {
    id: newId(),
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
    conversation.messages
      .find((m) => m.role === "user")
      ?.content.trim()
      .split("\n", 1)[0] ?? "";
  return first.length > TITLE ? `${first.slice(0, TITLE).trimEnd()}…` : first || "New chat";
}

/** The request body, without empty answers. going: continue the last answer. */
export function requestOf(conversation, { going = false } = {}) {
  const said = conversation.messages
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

/** Drops the messages from this one on. */
export function cutAt(conversation, message) {
  conversation.messages.splice(conversation.messages.indexOf(message));
}

/**
 * Takes out an exchange: a question with what follows it up to the next, for models want questions and answers by
 * turns. The last answer can go alone.
 */
export function remove(conversation, message) {
  const { messages } = conversation;
  let from = messages.indexOf(message);
  if (message.role === "assistant" && from < messages.length - 1) {
    while (from > 0 && messages[from].role !== "user") from -= 1;
  }
  let to = from + 1;
  while (to < messages.length && messages[to].role !== "user") to += 1;
  messages.splice(from, to - from);
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
