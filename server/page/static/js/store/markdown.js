// Conversations as Markdown, to be read elsewhere. It holds the shown versions.

import { t } from "../language/language.js";
import { shown } from "./branches.js";
import { titleOf } from "./conversation.js";
import { documentText, fenced } from "./fence.js";

const NAMES = { user: "You", assistant: "Satchel" };

export function asMarkdown(conversations) {
  return conversations.map(conversationText).join("\n\n---\n\n") + "\n";
}

function conversationText(conversation) {
  const day = new Date(conversation.updated).toISOString().slice(0, 10);
  const facts = [conversation.model && `\`${conversation.model}\``, day].filter(Boolean).join(", ");
  const system = conversation.system.trim();
  const parts = [`# ${titleOf(conversation)}`, facts];
  if (system) parts.push(`**${t("System prompt")}**\n\n${quoted(system)}`);
  return [...parts, ...shown(conversation).map(messageText)].join("\n\n");
}

function messageText({ role, content, reasoning, calls = [], documents = [] }) {
  const parts = [`## ${t(NAMES[role])}`, ...documents.map(documentText)];
  if (reasoning?.trim()) parts.push(quoted(reasoning.trim()));
  if (content.trim()) parts.push(content.trim());
  for (const call of calls) parts.push(`\`${call.name}\``, fenced(call.arguments, "json"));
  return parts.join("\n\n");
}

function quoted(text) {
  return text.replace(/^/gm, "> ");
}
