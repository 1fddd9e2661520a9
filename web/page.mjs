// page.mjs: the chat of index.html, with the model app.gguf beside it, or the one that ?model= names. Nothing leaves the page: after
// the first visit it works without a network (offline.js).
import { Chat } from "./satchel.mjs";

const $ = (id) => document.getElementById(id);
const messages = [];

function line(role, text) {
  const made = document.createElement("p");
  made.className = role;
  made.textContent = text;
  $("log").append(made);
  return made;
}

function ready(is) {
  $("text").disabled = $("send").disabled = !is;
  if (is) $("text").focus();
}

async function ask(chat, text) {
  messages.push({ role: "user", content: text });
  line("user", text);
  const shown = line("assistant", "");
  for await (const piece of chat.chat(messages)) shown.textContent += piece;
  messages.push({ role: "assistant", content: shown.textContent });
  const { tokens, rest } = chat.report;
  $("state").textContent = `${((1000 * (tokens - 1)) / rest).toFixed(0)} tokens a second`;
}

async function start() {
  await navigator.serviceWorker?.register("offline.js").catch(() => {});
  const url = new URL(new URLSearchParams(location.search).get("model") ?? "app.gguf", location.href).href;
  const worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
  const percent = (have, size) => ($("state").textContent = `Loading: ${Math.floor((100 * have) / size)} %`);
  const chat = await Chat.open(worker, { url }, percent);
  $("state").textContent = `Ready: ${chat.facts.kernels}, ${chat.facts.context} tokens`;
  $("form").onsubmit = async (event) => {
    event.preventDefault();
    const text = $("text").value.trim();
    if (!text || $("send").disabled) return;
    $("text").value = "";
    ready(false);
    try {
      await ask(chat, text);
    } catch (error) {
      line("error", error.message);
      messages.pop();
    }
    ready(true);
  };
  $("text").onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    $("form").requestSubmit();
  };
  ready(true);
}

start().catch((error) => ($("state").textContent = error.message));
