// The tools of a conversation: a JSON list. The user's text is stored, its parsed value is sent.

import { t } from "../language/language.js";

const NAME = /^[A-Za-z0-9_.-]{1,128}$/;

/** {tools, fault}: the list for the request, and an error message for the text, "" for none. */
export function readTools(text) {
  if (!text.trim()) return { tools: [], fault: "" };
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    return { tools: [], fault: t("This is no JSON: {error}", { error: error.message }) };
  }
  if (!Array.isArray(found)) return { tools: [], fault: t("This must be a list: [ ... ]") };
  const names = new Set();
  for (const [i, one] of found.entries()) {
    const fault = faultOf(one?.function ?? one, names);
    if (fault) return { tools: [], fault: t("Tool {number}: {fault}", { number: i + 1, fault }) };
  }
  return { tools: found.map((one) => ({ type: "function", function: one.function ?? one })), fault: "" };
}

function faultOf(tool, names) {
  if (!isObject(tool)) return t("it must be an object with a name.");
  const { name, parameters, description } = tool;
  if (typeof name !== "string" || !NAME.test(name))
    return t("its name must have letters, digits, _ . and - alone.");
  if (names.has(name)) return t("{name} occurs twice.", { name });
  names.add(name);
  if (description !== undefined && typeof description !== "string") return t("its description must be text.");
  if (parameters !== undefined && !isObject(parameters)) return t("its parameters must be a JSON schema.");
  return "";
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
