// Keeps the book for times without a network: sw.js beside the pages does it.
(async () => {
  if (!("serviceWorker" in navigator)) return; // as over http from another machine
  const old = navigator.serviceWorker.controller;
  const known = await navigator.serviceWorker.register("sw.js").catch(() => null);
  if (!known) return;
  const tell = (text, ...more) => {
    document.getElementById("newer")?.remove();
    const note = Object.assign(document.createElement("p"), { id: "newer", className: "newer", role: "status" });
    note.append(text, ...more);
    document.body.append(note);
  };
  const offer = () => {
    if (!old || !known.waiting) return;
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Load it" });
    button.onclick = () => known.waiting.postMessage("take over");
    tell("A newer book is here. ", button);
  };
  // The page is of the old release, and what it asks for now would be of the new one.
  navigator.serviceWorker.addEventListener("controllerchange", async () => {
    if (!old) return;
    if (await (window.keepWork?.() ?? true)) location.reload();
    else tell("A newer book is here. Export your work, which this browser does not keep; then load this page anew.");
  });
  known.addEventListener("updatefound", () =>
    known.installing?.addEventListener("statechange", offer));
  offer();
})();
