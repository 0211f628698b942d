// The learner's work in this browser: files by path in IndexedDB, in several tabs at once.
//
// A file is {path, text, revision}; each save raises the revision. Who saves says which revision it
// has begun with, so that two tabs never overwrite each other unseen.

const NAME = "mini_vllm";
const told = new BroadcastChannel(NAME);
let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("files", { keyPath: "path" });
      asked.result.createObjectStore("backups", { keyPath: "id", autoIncrement: true });
    };
    asked.onsuccess = () => {
      asked.result.onversionchange = () => { asked.result.close(); opened = null; }; // it is deleted elsewhere
      resolve(asked.result);
    };
    asked.onerror = () => reject(asked.error);
    asked.onblocked = () => reject(new Error("another tab of the course holds the storage; close it"));
  });
  opened.catch(() => { opened = null; });
  return opened;
}

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function begin(names, mode) {
  const transaction = (await database()).transaction(names, mode);
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? new Error("not stored"));
  });
  ended.catch(() => {}); // who waits for it hears of it
  return { transaction, ended };
}

async function store(name, mode) {
  const { transaction, ended } = await begin([name], mode);
  return { files: transaction.objectStore(name), ended };
}

/** One file, or undefined. */
export async function load(path) {
  return done((await store("files", "readonly")).files.get(path));
}

/** All files. */
export async function all() {
  return done((await store("files", "readonly")).files.getAll());
}

/**
 * Save a file unless another tab has saved it since `base`, the revision that this tab knows.
 * @returns {saved: true, revision}, or {saved: false, file}: what stands there now.
 */
export async function save(path, text, base) {
  const { files, ended } = await store("files", "readwrite");
  const file = await done(files.get(path));
  if (file && file.revision !== base && file.text !== text) return { saved: false, file };
  const revision = (file?.revision ?? 0) + 1;
  files.put({ path, text, revision });
  await ended;
  told.postMessage({ path, text, revision });
  return { saved: true, revision };
}

/**
 * Save files that come from elsewhere, all of them or none; the texts that they replace are kept.
 * @param why stands beside those texts.
 */
export async function saveAll(texts, why) {
  const { transaction, ended } = await begin(["files", "backups"], "readwrite");
  const [files, kept] = ["files", "backups"].map((name) => transaction.objectStore(name));
  const saved = [];
  try {
    for (const [path, text] of Object.entries(texts)) {
      const file = await done(files.get(path));
      if (file?.text === text) continue;
      if (file) await keep(kept, path, file.text, why);
      saved.push({ path, text, revision: (file?.revision ?? 0) + 1 });
      files.put(saved.at(-1));
    }
  } catch (error) {
    transaction.abort();
    throw error;
  }
  await ended;
  saved.forEach((file) => told.postMessage(file));
}

/** Keep a text that is about to be replaced; the newest fifty stay. */
export async function backup(path, text, why) {
  const { files: kept, ended } = await store("backups", "readwrite");
  await keep(kept, path, text, why);
  await ended;
}

async function keep(kept, path, text, why) {
  kept.add({ path, text, why, when: new Date().toISOString() });
  const ids = await done(kept.getAllKeys());
  for (const id of ids.slice(0, -50)) kept.delete(id);
}

/** The kept texts of one file, the newest first. */
export async function backups(path) {
  const kept = await done((await store("backups", "readonly")).files.getAll());
  return kept.filter((one) => one.path === path).reverse();
}

/** Call `hear({path, text, revision})` whenever another tab has saved a file. */
export function onSaved(hear) {
  told.addEventListener("message", ({ data }) => hear(data));
}

/** Delete all of it, for good. */
export async function forget() {
  (await database()).close();
  opened = null;
  await done(indexedDB.deleteDatabase(NAME));
  told.postMessage({ path: "", text: "", revision: 0 });
}

/** Run `act` while no other tab does: judging reads and writes what the course remembers. */
export function alone(act) {
  return navigator.locks ? navigator.locks.request(NAME, act) : act();
}
