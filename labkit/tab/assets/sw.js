// Keeps the book for times without a network, and lets its pages stop an endless loop.
//
// VERSION names a release, FILES the digest of each of its files: no file of another release gets
// into its cache, or to its pages. A new release takes over as a whole when no page of the old one
// is open any more, or when the reader asks for it.
const VERSION = "%VERSION%";
const FILES = %FILES%; // name -> the first half of its SHA-256, in hexadecimal digits
const OURS = "mini_vllm ";
const CACHE = `${OURS}${VERSION}`;

/** Kept at once; what Python needs is kept when it is first asked for. */
const atOnce = (name) => /\.(html|js|py)$/.test(name) && !name.startsWith("try/pyodide/");
const address = (name) => new URL(name, self.registration.scope).href;
const older = async () => (await caches.keys()).filter((name) => name.startsWith(OURS) && name !== CACHE);

async function isAsReleased(name, body) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  return FILES[name] === Array.from(digest.slice(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

self.addEventListener("install", (event) => event.waitUntil(install()));

/** Keep the pages, and what the release before has kept: it works without a network as that did. */
async function install() {
  const [cache, ...before] = await Promise.all([CACHE, ...await older()].map((name) => caches.open(name)));
  await Promise.all(Object.keys(FILES).map(async (name) => {
    let had = null;
    for (const one of before) had ??= await one.match(address(name));
    if (!had && !atOnce(name)) return;
    const body = await had?.clone().arrayBuffer();
    const response = body && await isAsReleased(name, body) ? had : await whole(name);
    await cache.put(address(name), response);
  }));
}

/** A file of this release from the server. Throws where the server has another release. */
async function whole(name) {
  const response = await fetch(address(name), { cache: "no-cache" });
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  const body = await response.arrayBuffer();
  if (!await isAsReleased(name, body)) throw new Error(`${name} is of another release than ${VERSION}`);
  return new Response(body, { headers: { "Content-Type": response.headers.get("Content-Type") ?? "" } });
}

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await older()) await caches.delete(name);
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
  const name = decodeURI(url.href.slice(self.registration.scope.length).split(/[?#]/)[0]).replace(/(^|\/)$/, "$1index.html");
  if (!Object.hasOwn(FILES, name)) return isolated(await fetch(request));
  const cache = await caches.open(CACHE);
  const kept = await cache.match(address(name));
  if (kept) return isolated(kept);
  const response = await fetch(address(name), { cache: "no-cache" });
  if (!response.ok || !response.body) return isolated(response);
  const type = response.headers.get("Content-Type") ?? "";
  return isolated(response, response.body.pipeThrough(checked(name, cache, type)));
}

/** Passes a file on as it comes in, so that a page sees how far it is, and keeps it. A file of
 * another release breaks off before its end: no page gets it. */
function checked(name, cache, type) {
  const parts = [];
  return new TransformStream({
    transform(part, out) {
      if (parts.length) out.enqueue(parts.at(-1));
      parts.push(part.slice());
    },
    async flush(out) {
      const body = await new Blob(parts).arrayBuffer();
      if (!await isAsReleased(name, body)) {
        self.registration.update().catch(() => {});
        throw new Error(`${name} is of another release than ${VERSION}`);
      }
      if (parts.length) out.enqueue(parts.at(-1));
      await cache.put(address(name), new Response(body, { headers: { "Content-Type": type } })).catch(() => {}); // full: not kept
    },
  });
}

// With these headers a page may share memory with its worker, and so interrupt it.
function isolated(response, body = response.body) {
  const headers = new Headers(response.headers);
  headers.set("Cross-Origin-Opener-Policy", "same-origin");
  headers.set("Cross-Origin-Embedder-Policy", "require-corp");
  headers.set("Cross-Origin-Resource-Policy", "same-origin");
  return new Response(body, { status: response.status, statusText: response.statusText, headers });
}
