// Python in a worker: loads Pyodide and the course's bundle, then answers the page's requests.
// To the page go {event: "progress" | "ready" | "check" | "line" | "answer" | "failed", …}.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const MOST = 1 << 30; // bytes of memory: what grows without end meets a MemoryError, and the page lives on
const PACKAGES = "/lib/python3.14/site-packages";
const LACKING = "It could not be loaded. Is the network there? If a newer book has come out, load this page anew.";
let driver = null;

const grow = WebAssembly.Memory.prototype.grow;
WebAssembly.Memory.prototype.grow = function (pages) {
  if (this.buffer.byteLength + pages * 65536 > MOST) throw new RangeError(`more than ${MOST} bytes of memory`);
  return grow.call(this, pages);
};

// Count what comes in, for every request, so that the page can show how far it is.
const plainFetch = self.fetch.bind(self);
let loaded = 0;
self.fetch = async (...asked) => {
  const response = await plainFetch(...asked);
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  if (!response.body) return response;
  const counted = response.body.pipeThrough(new TransformStream({
    transform(chunk, out) {
      loaded += chunk.byteLength;
      postMessage({ event: "progress", loaded });
      out.enqueue(chunk);
    },
  }));
  return new Response(counted, { headers: response.headers });
};

async function zip(name) {
  return (await self.fetch(new URL(name, import.meta.url))).arrayBuffer();
}

async function start(interrupts) {
  const [python, packages, course] = await Promise.all([ // the files beside Pyodide, not after it
    loadPyodide({ indexURL: new URL("./pyodide/", import.meta.url).href }), zip("packages.zip"), zip("course.zip")]);
  python.unpackArchive(packages, "zip", { extractDir: PACKAGES });
  python.unpackArchive(course, "zip", { extractDir: "/course" });
  if (interrupts) python.setInterruptBuffer(interrupts);
  python.globals.set("post", (text) => postMessage(JSON.parse(text)));
  driver = python.runPython(`
import json, sys
sys.path.insert(0, "/course")
import pytest
from labkit.tab.driver import Driver
Driver(lambda event: post(json.dumps(event)))
`);
  postMessage({ event: "ready" });
}

self.onmessage = async ({ data }) => {
  try {
    if (data.do === "start") await start(data.interrupts);
    else postMessage({ event: "answer", ...JSON.parse(driver.answer(data.request)) });
  } catch (error) {
    const why = String(error?.message ?? error).trim().split("\n").slice(-6).join("\n");
    postMessage({ event: "failed", message: driver ? why : `${why}\n${LACKING}` });
  }
};
