// The settings of a conversation, which presets hold too.
//
// {system, tools, forced, sampling: {name: number}, schema, stop, thinking, overflow}
// tools: the JSON text of a list, "" for none; forced: each answer must call one of them
// schema: the JSON text of a schema that answers must match, "" for none; stop: texts that end an answer, a line each
// overflow: what a full context does: "" forgets what is oldest, "error" ends the answer
// thinking: "" for the model's own way, an effort ("none", "low" ...), or a number of tokens

import { t } from "../language/language.js";
import { isObject, readTools } from "./tools.js";

const NONE = {
  system: "",
  tools: "",
  forced: false,
  sampling: {},
  schema: "",
  stop: "",
  thinking: "",
  overflow: "",
};
const MOST_STOPS = 64;

/** A copy of the settings in an object; those that it lacks are empty. */
export function settingsOf(found = {}) {
  const given = Object.keys(NONE).map((name) => [name, found[name] ?? NONE[name]]);
  return structuredClone(Object.fromEntries(given));
}

/** Whether two objects hold the same settings. */
export function sameSettings(one, other) {
  return plain(one) === plain(other);
}

function plain(found) {
  const settings = settingsOf(found);
  return JSON.stringify({ ...settings, sampling: Object.entries(settings.sampling).sort() });
}

/** {schema, fault}: the JSON schema of a text, null for none, and an error message for the text, "" for none. */
export function readSchema(text) {
  if (!text.trim()) return { schema: null, fault: "" };
  let schema;
  try {
    schema = JSON.parse(text);
  } catch (error) {
    return { schema: null, fault: t("This is no JSON: {error}", { error: error.message }) };
  }
  if (isObject(schema)) return { schema, fault: "" };
  return { schema: null, fault: t("This must be an object: { ... }") };
}

/** {stops, fault}: the texts that end an answer. \n in a line is a new line. */
export function readStops(text) {
  const stops = text
    .split("\n")
    .filter(Boolean)
    .map((line) => line.replaceAll("\\n", "\n"));
  if (stops.length > MOST_STOPS)
    return { stops: [], fault: t("There may be {most} at most.", { most: MOST_STOPS }) };
  return { stops, fault: "" };
}

/** The settings as fields of a request. going: an answer is continued, so its form is no longer open. */
export function fieldsOf(settings, { going = false } = {}) {
  const { sampling, schema, stop, thinking, tools, forced, overflow } = settingsOf(settings);
  const fields = { ...sampling };
  const { stops } = readStops(stop);
  if (stops.length) fields.stop = stops;
  if (thinking) Object.assign(fields, thinkingFields(thinking));
  const form = going ? null : readSchema(schema).schema;
  const offered = going || form ? [] : readTools(tools).tools;
  // The grammar of a fixed form would begin anew after a shift, so the server refuses it.
  if (overflow !== "error" && !form && !(forced && offered.length)) fields.on_overflow = "shift";
  if (form) fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: form } };
  else if (offered.length) {
    fields.tools = offered;
    if (forced) fields.tool_choice = "required";
  }
  return fields;
}

function thinkingFields(thinking) {
  return /^\d+$/.test(thinking)
    ? { reasoning_budget_tokens: Number(thinking) }
    : { reasoning_effort: thinking };
}
