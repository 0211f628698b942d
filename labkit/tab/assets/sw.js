// Keeps the book for times without a network, and lets its pages stop an endless loop.
//
// VERSION names all files of a release: a new release gets a cache of its own, and takes over as a
// whole when no page of the old one is open any more, or when the reader asks for it.
const VERSION = "%VERSION%";
const PAGES = %PAGES%; // read at once; what Python needs is kept when it is first asked for
const CACHE = `mini_vllm ${VERSION}`;

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) =>
    cache.addAll(PAGES.map((page) => new Request(page, { cache: "no-cache" })))));
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) {
      if (name.startsWith("mini_vllm ") && name !== CACHE) await caches.delete(name);
    }
    await self.clients.claim();
  })());
});

self.addEventListener("message", ({ data }) => {
  if (data === "take over") self.skipWaiting();
});

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  const ours = url.href.startsWith(self.registration.scope) && event.request.method === "GET";
  if (ours) event.respondWith(answer(event.request, url));
});

async function answer(request, url) {
  const cache = await caches.open(CACHE);
  const name = url.origin + url.pathname.replace(/\/$/, "/index.html");
  let response = await cache.match(name);
  if (!response) {
    response = await fetch(request.mode === "navigate" ? name : request);
    if (response.status === 200) await cache.put(name, response.clone()).catch(() => {}); // full: not kept
  }
  return isolated(response);
}

// With these headers a page may share memory with its worker, and so interrupt it.
function isolated(response) {
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
