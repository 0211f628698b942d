// Keeps the book for times without a network: sw.js beside the pages does it.
(async () => {
  if (!("serviceWorker" in navigator)) return; // as over http from another machine
  const old = navigator.serviceWorker.controller;
  const known = await navigator.serviceWorker.register("sw.js").catch(() => null);
  if (!known) return;
  const offer = () => {
    if (!old || !known.waiting || document.getElementById("newer")) return;
    const note = Object.assign(document.createElement("p"), { id: "newer", className: "newer", textContent: "A newer book is here. " });
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Load it" });
    button.onclick = () => known.waiting.postMessage("take over");
    note.append(button);
    document.body.append(note);
  };
  navigator.serviceWorker.addEventListener("controllerchange", () => { if (old) location.reload(); });
  known.addEventListener("updatefound", () =>
    known.installing?.addEventListener("statechange", offer));
  offer();
})();
