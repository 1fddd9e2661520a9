// worker.mjs: a Model in a worker of a browser; satchel.mjs's Chat speaks with it. The model's file is kept by the Cache API, so it is
// fetched once, and is there without a network.
import { Model, pickModule } from "./satchel.mjs";

const CACHE = "satchel-models";
let model, stopped, last = Promise.resolve();

// Lets messages come in. A timer would wait for some milliseconds.
const { port1, port2 } = new MessageChannel();
const pause = () => new Promise((resolve) => ((port1.onmessage = resolve), port2.postMessage(0)));

async function fetched(url) {
  const cache = await globalThis.caches?.open(CACHE).catch(() => undefined);
  const kept = await cache?.match(url);
  if (kept) return kept;
  const got = await fetch(url);
  if (!got.ok || !cache) return got;
  try {
    await cache.put(url, got);
    return (await cache.match(url)) ?? fetch(url);
  } catch {
    return fetch(url); // the browser has no room for it
  }
}

async function open({ url, context }) {
  const name = pickModule();
  const module = await WebAssembly.compile(await (await fetch(new URL(`satchel-${name}.wasm`, import.meta.url))).arrayBuffer());
  const progress = (have, size) => postMessage({ progress: [have, size] });
  model = await Model.open(module, await fetched(url), { context, progress });
  postMessage({ opened: { kernels: name, context: model.context } });
}

async function answer({ id, chat, options }) {
  const begin = performance.now();
  let first = 0;
  for (const piece of model.chat(chat, options)) {
    first ||= performance.now();
    postMessage({ id, piece });
    await pause();
    if (stopped >= id) break;
  }
  const end = performance.now();
  postMessage({ id, report: { ...model.report(), first: first - begin, rest: end - first } });
}

// One answer after the other; ids of answers grow.
onmessage = ({ data }) => {
  if (data.stop) stopped = data.stop;
  else last = last.then(() => (data.open ? open(data.open) : answer(data))).catch((error) => postMessage({ id: data.id, error: error.message }));
};
