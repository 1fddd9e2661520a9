// Drives a server with the openai package of npm: node openai.mjs URL MODEL. Prints a JSON object of what came.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 2 });
const messages = [{ role: "user", content: "Who are you?" }];
const ask = { model, messages, max_tokens: 12, temperature: 0 };
const found = {};

found.models = (await client.models.list()).data.map((m) => m.id);
found.chat = (await client.chat.completions.create(ask)).choices[0].message.content;

let text = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
found.stream = text;
found.tokens = usage?.completion_tokens;
found.helper = await client.chat.completions.stream(ask).finalContent();

const schema = { type: "object", properties: { n: { type: "integer", maximum: 9 } }, required: ["n"], additionalProperties: false };
const form = { type: "json_schema", json_schema: { name: "n", schema, strict: true } };
found.form = JSON.parse((await client.chat.completions.create({ ...ask, max_tokens: 60, response_format: form })).choices[0].message.content);

try {
  await client.chat.completions.create({ ...ask, temperature: -1 });
} catch (error) {
  found.error = { name: error.constructor.name, status: error.status, param: error.param, type: error.type };
}

const long = await client.chat.completions.create({ ...ask, max_tokens: 200, stream: true });
for await (const _ of long) break; // leaves in the middle
found.after = (await client.chat.completions.create(ask)).choices[0].message.content;

found.completion = (await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 4, temperature: 0 })).choices[0].text;
found.embedding = (await client.embeddings.create({ model, input: "a harbour" })).data[0].embedding.length;
let response = "";
for await (const event of await client.responses.create({ model, input: "Who are you?", max_output_tokens: 12, temperature: 0, stream: true })) {
  if (event.type === "response.output_text.delta") response += event.delta;
}
found.response = response;
console.log(JSON.stringify(found));
