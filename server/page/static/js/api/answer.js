// One streamed chat completion.

import { t } from "../language/language.js";
import { eventsOf } from "./events.js";
import { Trouble, away, troubleOf } from "./trouble.js";

/**
 * Yields {content}, {reasoning}, {call: {index, id, name, arguments}}, {finish}, {overflow} and {usage, timings}; ends
 * with a Trouble where the server does.
 */
export async function* answer(client, body, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await client.send("/v1/chat/completions", { body: asked, signal });
  let ended = false;
  try {
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") return;
      for (const part of partsOf(JSON.parse(data))) {
        ended ||= Boolean(part.finish);
        yield part;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
    throw away();
  }
  if (!ended) throw new Trouble("broken", t("The server broke off in the middle of its answer. Try again."));
}

function* partsOf(chunk) {
  if (chunk.error) throw troubleOf(chunk);
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning;
  if (thought) yield { reasoning: thought };
  if (delta.content) yield { content: delta.content };
  for (const { index = 0, id, function: made = {} } of delta.tool_calls ?? []) {
    yield { call: { index, id, name: made.name, arguments: made.arguments ?? "" } };
  }
  if (choice?.finish_reason) yield { finish: choice.finish_reason };
  if (chunk.overflow) yield { overflow: chunk.overflow };
  if (chunk.usage) yield { usage: chunk.usage, timings: chunk.timings ?? {} };
}
