// Chats: node chat.mjs MODEL [WORKER] reads a message from each line. WORKER: the program that runs files without a plan.
import { createInterface } from "node:readline";
import { Engine, Model } from "./satchel.mjs";

const [path, worker] = process.argv.slice(2);
const model = new Model(path, worker ? { engine: Engine.EITHER, worker } : {});
const messages = [];
for await (const content of createInterface({ input: process.stdin })) {
  messages.push({ role: "user", content });
  let answer = "";
  for await (const piece of model.chat(messages, { temperature: 0, max_tokens: 64 })) {
    process.stdout.write(piece);
    answer += piece;
  }
  process.stdout.write("\n");
  messages.push({ role: "assistant", content: answer });
}
