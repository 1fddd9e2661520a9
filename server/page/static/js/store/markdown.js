// Conversations as Markdown, to be read elsewhere. It holds the shown versions.

import { shown } from "./branches.js";
import { titleOf } from "./conversation.js";

const NAMES = { user: "You", assistant: "Satchel" };

export function asMarkdown(conversations) {
  return conversations.map(conversationText).join("\n\n---\n\n") + "\n";
}

function conversationText(conversation) {
  const day = new Date(conversation.updated).toISOString().slice(0, 10);
  const facts = [conversation.model && `\`${conversation.model}\``, day].filter(Boolean).join(", ");
  const system = conversation.system.trim();
  const parts = [`# ${titleOf(conversation)}`, facts];
  if (system) parts.push(`**System prompt**\n\n${quoted(system)}`);
  return [...parts, ...shown(conversation).map(messageText)].join("\n\n");
}

function messageText({ role, content, reasoning, calls = [] }) {
  const parts = [`## ${NAMES[role]}`];
  if (reasoning?.trim()) parts.push(quoted(reasoning.trim()));
  if (content.trim()) parts.push(content.trim());
  for (const call of calls) parts.push(`\`${call.name}\``, fenced(call.arguments, "json"));
  return parts.join("\n\n");
}

function quoted(text) {
  return text.replace(/^/gm, "> ");
}

/** Code whose fence is longer than any run of backticks in it. */
export function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, "")}\n${fence}`;
}
