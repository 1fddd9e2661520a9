// offline.js: a service worker that keeps the page's own files, so that the page opens without a network. With one, the newest file is
// taken. worker.mjs keeps the model.
const CACHE = "satchel-page";
const FILES = ["./", "page.mjs", "satchel.mjs", "worker.mjs", "satchel-simd128.wasm", "satchel-relaxed.wasm"];

addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => skipWaiting()));
});

addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  if (event.request.method !== "GET" || url.origin !== location.origin || url.pathname.endsWith(".gguf")) return;
  event.respondWith(
    fetch(event.request).then(
      async (got) => {
        const cache = await caches.open(CACHE);
        if (got.ok) await cache.put(event.request, got.clone());
        return got;
      },
      () => caches.match(event.request, { ignoreSearch: true }),
    ),
  );
});
