// Parses streamed response bodies: server-sent events, and lines of JSON.

/** Yields the data of each server-sent event. */
export async function* eventsOf(response) {
  for await (const event of partsOf(response, /\r?\n\r?\n/)) {
    const data = dataOf(event);
    if (data) yield data;
  }
}

/** Yields the value of each line of JSON. */
export async function* linesOf(response) {
  for await (const line of partsOf(response, /\n/)) yield JSON.parse(line);
}

/** Yields the parts of a text that end with a separator. */
async function* partsOf(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split(separator);
      rest = parts.pop();
      yield* parts;
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
