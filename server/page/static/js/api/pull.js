// One download of a model by the server: Ollama's /api/pull.

import { linesOf } from "./events.js";
import { Trouble, away } from "./trouble.js";

// user/repo and user/repo:Q4_K_M, which Ollama's API would look for on ollama.com.
const REPOSITORY = /^\w[\w.+-]*\/\w[\w.+-]*(:[\w.+-]+)?$/;

/** Yields {done, total} in bytes of the file that comes; ends when the server has the model, or with a Trouble. */
export async function* pull(client, name, signal) {
  const model = REPOSITORY.test(name) ? `hf:${name}` : name;
  const response = await client.send("/api/pull", { body: { model }, signal });
  let last = {};
  try {
    for await (last of linesOf(response)) {
      if (last.error) throw new Trouble("refused", last.error);
      if (last.completed !== undefined) yield { done: last.completed, total: last.total ?? 0 };
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Trouble) throw error;
    throw away();
  }
  if (last.status !== "success") throw away();
}
