"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const places = JSON.parse($("#places").textContent);
  const articles = all(".reading > article");
  const beside = $(".beside");
  const narrow = matchMedia("(max-width: 62rem)");
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let active = null;

  /* ---- chapters: one at a time, named by the address ---- */

  function showChapter(name) {
    const article = articles.find((a) => a.id === name) || articles[0];
    if (!article) return;
    for (const a of articles) a.classList.toggle("current", a === article);
    for (const link of all(".chapters a")) {
      if (link.dataset.chapter === article.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  function followAddress() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (/^[um]\d+/.test(id)) return showLine(id);
    showChapter(id.split("--")[0]);
    // "task-3" also finds the heading "Task 3: the victim".
    const target = id.includes("--") && (document.getElementById(id) || $(`[id^="${CSS.escape(id)}"]`));
    if (target) target.scrollIntoView();
    else (narrow.matches ? window : $(".reading")).scrollTo(0, 0);
  }

  function stepChapter(by) {
    const now = articles.findIndex((a) => a.classList.contains("current"));
    const next = articles[now + by];
    if (next) location.hash = next.id;
  }

  /* ---- the right side ---- */

  function showTab(name) {
    for (const tab of all('[role="tab"]')) tab.setAttribute("aria-selected", String(tab.id === `tab-${name}`));
    for (const pane of all(".pane")) pane.hidden = pane.id !== `pane-${name}`;
    if (narrow.matches) beside.classList.add("up");
  }

  function showLine(id) {
    const line = document.getElementById(id);
    if (!line) return;
    showTab(line.closest(".pane").id.replace("pane-", ""));
    line.scrollIntoView({ block: "center" });
    line.classList.add("flash");
    line.addEventListener("animationend", () => line.classList.remove("flash"), { once: true });
  }

  function mark(line, name) {
    const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
    const found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const at = node.parentElement.className === "c" ? -1 : node.data.search(new RegExp(`\\b${name}\\b`));
      if (at >= 0) found.push([node, at]);
    }
    for (const [node, at] of found) {
      const rest = node.splitText(at);
      rest.splitText(name.length);
      const element = document.createElement("mark");
      rest.replaceWith(element);
      element.append(rest);
    }
  }

  function unmark() {
    for (const line of all(".l.on, .l.owner")) line.classList.remove("on", "owner");
    for (const element of all(".l mark")) {
      const parent = element.parentNode;
      element.replaceWith(...element.childNodes);
      parent.normalize();
    }
  }

  function crumbs(place) {
    const line = $("#crumbs");
    line.replaceChildren(`${place.path.replace(/^vllm\//, "")} › `);
    for (const [text, number] of place.owners) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text.replace(/^(async def|def|class)\s+(\w+).*/, "$1 $2");
      button.title = `line ${number}`;
      button.addEventListener("click", () => showLine(`${place.file}-${number}`));
      line.append(button, " › ");
    }
    const range = place.first === place.last ? `line ${place.first}` : `lines ${place.first}–${place.last}`;
    const link = document.createElement("a");
    link.href = place.url;
    link.textContent = "GitHub";
    line.append(`${range} · `, link);
  }

  function showPlace(place) {
    showTab("upstream");
    for (const file of all("#pane-upstream .file")) file.hidden = file.id !== place.file;
    unmark();
    $("#picker").value = place.key;
    crumbs(place);
    const name = place.symbol.split(".").pop();
    for (const [, number] of place.owners) {
      const line = document.getElementById(`${place.file}-${number}`);
      if (line) { line.classList.add("owner"); mark(line, name); }
    }
    let first = null;
    for (let number = place.first; number <= place.last; number++) {
      const line = document.getElementById(`${place.file}-${number}`);
      if (!line) continue;
      line.classList.add("on");
      first ??= line;
      if (!line.classList.contains("owner")) mark(line, name);
    }
    if (first) scrollTo(first);
  }

  function scrollTo(line) {
    const box = line.closest(".scroll");
    const top = line.getBoundingClientRect().top - box.getBoundingClientRect().top + box.scrollTop;
    const behavior = calm.matches ? "auto" : "smooth";
    box.scrollTo({ top: top - box.clientHeight * 0.22, left: indentToHide(box), behavior });
  }

  // Deeply indented lines that do not fit move left until their indent is four characters.
  function indentToHide(box) {
    const lines = all(".l.on code", box).filter((code) => code.textContent.trim());
    const widest = Math.max(...lines.map((code) => code.offsetLeft + code.offsetWidth));
    const indent = Math.min(...lines.map((code) => code.textContent.search(/\S/)));
    const sample = lines.find((code) => code.textContent.length > 8);
    if (widest <= box.clientWidth || !sample) return 0;
    const character = sample.offsetWidth / sample.textContent.length;
    return Math.max(0, Math.min(widest - box.clientWidth + 16, (indent - 4) * character));
  }

  /* ---- citations, and names of your own functions ---- */

  function placeOf(cite) {
    const { path, first, last } = cite.dataset;
    const symbol = cite.textContent.replaceAll("\u200b", "");
    const same = places.filter((p) => p.path === path && p.first === +first && p.last === +last);
    return same.find((p) => symbol.includes(p.symbol)) || same[0];
  }

  function activate(cite) {
    const place = placeOf(cite);
    if (!place) return;
    active?.classList.remove("active");
    active = cite;
    cite.classList.add("active");
    showPlace(place);
  }

  function stepCitation(by) {
    const cites = all("article.current .cite");
    if (!cites.length) return;
    let index = cites.indexOf(active);
    if (index < 0) {
      const below = cites.findIndex((c) => c.getBoundingClientRect().top > 90);
      index = by > 0 ? (below < 0 ? cites.length : below) - 1 : below < 0 ? cites.length : below;
    }
    const next = cites[Math.min(Math.max(index + by, 0), cites.length - 1)];
    next.scrollIntoView({ block: "center", behavior: calm.matches ? "auto" : "smooth" });
    next.focus({ preventScroll: true });
    activate(next);
  }

  /* ---- search: this page's text, its cited places, your tasks; the rest is the book's ---- */

  const page = $(".title").textContent.trim().replace(/\s+/g, " ");

  function ownEntries() {
    const entries = [];
    for (const article of articles) {
      const chapter = [page, article.getAttribute("aria-label")].join(" · ");
      let heading = "", anchor = article.id;
      for (const part of all("h1, h2, h3, h4, p, li, td, pre", article)) {
        if (part.closest(".toc")) continue;
        const text = part.textContent.replace(/\s+/g, " ").replace(/ #$/, "").trim(), titles = /^H\d$/.test(part.tagName);
        if (titles) [heading, anchor] = [part.tagName === "H1" ? "" : text, part.id];
        const where = heading && !titles ? `${chapter} › ${heading}` : chapter;
        if (text) entries.push({ text, where, href: `#${anchor}`, element: part, weight: titles ? 3 : 1 });
      }
    }
    for (const p of places) entries.push({ text: p.symbol, where: `${page} · Upstream › ${p.path} ${p.first}–${p.last}`, href: "", place: p, weight: 2 });
    for (const task of all(".tasks li")) entries.push({ text: task.textContent, where: `${page} · Your files`, href: $("a", task).getAttribute("href"), weight: 2 });
    return entries;
  }

  function follow(entry) {
    if (entry.place) showPlace(entry.place);
    else if (entry.element) reveal(entry);
    else return false;
    return true;
  }

  function reveal(entry) {
    showChapter(entry.element.closest("article").id);
    for (let d = entry.element.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
    entry.element.scrollIntoView({ block: "center" });
    entry.element.classList.add("flash");
    setTimeout(() => entry.element.classList.remove("flash"), 1700);
    history.replaceState(null, "", entry.href);
  }

  const search = startSearch(ownEntries, follow);

  /* ---- theme, dialogs, divider, keys ---- */

  const actions = {
    search,
    theme: toggleTheme,
    help() { $("#help").showModal(); },
    close() { beside.classList.remove("up"); },
    beside() { beside.classList.toggle("up"); },
  };
  for (const button of all("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
  for (const d of all("dialog")) d.addEventListener("click", (event) => { if (event.target === d) d.close(); });

  const keys = {
    j: () => stepCitation(1), k: () => stepCitation(-1),
    "[": () => stepChapter(-1), "]": () => stepChapter(1),
    1: () => showTab("upstream"), 2: () => { if (!document.body.classList.contains("no-files")) showTab("mine"); },
    "/": actions.search, t: toggleTheme, "?": actions.help, Escape: actions.close,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.target.matches("input, select, textarea") || event.target.isContentEditable) return;
    const action = keys[event.key];
    if (action) { event.preventDefault(); action(); }
  });

  document.addEventListener("click", (event) => {
    const cite = event.target.closest?.(".cite");
    if (cite && !event.ctrlKey && !event.metaKey && !event.shiftKey && placeOf(cite)) {
      event.preventDefault();
      activate(cite);
    }
    const task = event.target.closest?.("a.task, .tasks a");
    if (task) {
      event.preventDefault();
      showLine(task.hash.slice(1));
    }
  });
  for (const tab of all('[role="tab"]')) tab.addEventListener("click", () => showTab(tab.id.replace("tab-", "")));
  $("#picker")?.addEventListener("change", (event) => showPlace(places.find((p) => p.key === event.target.value)));

  const divider = $(".divider");
  const setSplit = (percent) => document.documentElement.style.setProperty("--split", `${Math.min(75, Math.max(25, percent))}%`);
  divider?.addEventListener("pointerdown", (event) => {
    divider.setPointerCapture(event.pointerId);
    const move = (e) => setSplit((e.clientX / innerWidth) * 100);
    divider.addEventListener("pointermove", move);
    divider.addEventListener("pointerup", () => divider.removeEventListener("pointermove", move), { once: true });
  });
  divider?.addEventListener("keydown", (event) => {
    const now = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--split"));
    if (event.key === "ArrowLeft") setSplit(now - 2);
    if (event.key === "ArrowRight") setSplit(now + 2);
  });

  window.addEventListener("hashchange", followAddress);
  if (places.length) showPlace(places[0]);
  else showTab("mine");
  actions.close();
  followAddress();
})();
