/* The search of a page: its own text, and the other pages of the book.

   An entry is {text, where, href, weight}: `where` names phase, chapter and heading; heavier ones come first. A word
   that stands nowhere is taken for the most similar one that does, and the list says so. */

function bookEntries() {
  const here = location.pathname.split("/").pop(), { sections, entries } = window.BOOK || { sections: [], entries: [] };
  return entries.filter(([, section]) => sections[section][1].split("#")[0] !== here).map(([text, section, titles]) => {
    const [where, href] = sections[section];
    return { text, where: titles ? where.split(" › ")[0] : where, href, weight: titles ? 1.5 : 0.5 };
  });
}

/* Letters to change, add, drop or swap with a neighbour until `a` is `b`. */
function distance(a, b) {
  let older = [], row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1] ? older[j - 2] + 1 : Infinity;
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1), swapped);
    }
    [older, row] = [row, next];
  }
  return row[b.length];
}

/* How often each word stands in the entries. */
function vocabulary(entries) {
  const counts = new Map();
  for (const { text } of entries) {
    for (const word of text.toLowerCase().match(/[\p{L}\d_]{3,}/gu) || []) counts.set(word, (counts.get(word) || 0) + 1);
  }
  return counts;
}

/* The known word that was most probably meant: one wrong letter from four on, two from eight on. */
function similar(word, counts) {
  const most = word.length < 4 ? 0 : word.length < 8 ? 1 : 2;
  let best = null, least = most + 1, often = 0;
  for (const [known, count] of counts) {
    if (Math.abs(known.length - word.length) > most) continue;
    const far = distance(word, known);
    if (far < least || (far === least && far <= most && count > often)) [best, least, often] = [known, far, count];
  }
  return best;
}

/* Wires the search dialog. `ownEntries` gives the page's entries; `follow` shows one of them, or returns false for
   the browser to follow its link. Returns what opens the dialog. */
function startSearch(ownEntries, follow) {
  const dialog = document.querySelector("#search"), input = dialog.querySelector("input"), list = dialog.querySelector("ol");
  let entries = null, counts = null;

  function say(...words) {
    const item = document.createElement("li");
    item.className = "none";
    item.append(...words);
    list.append(item);
  }

  function search() {
    entries ??= [...ownEntries(), ...bookEntries()];
    const typed = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const words = typed.map((word) => (entries.some((e) => holds(e, word)) ? word : meant(word)));
    const hits = words.length === 0 ? [] : entries
      .filter((e) => words.every((word) => holds(e, word)))
      .map((e) => [e.weight - e.text.length / 2000, e])
      .sort((a, b) => b[0] - a[0]).slice(0, 30);
    list.replaceChildren();
    const changed = words.filter((word, i) => word !== typed[i]);
    if (changed.length && hits.length) say(`“${input.value.trim()}” stands nowhere. Shown: “${words.join(" ")}”.`);
    list.append(...hits.map(([, e]) => resultItem(e, words)));
    if (words.length && !hits.length) say("Nothing found.");
    if (!window.BOOK && typed.length) say("Only this page was searched. ", code("make book"), " builds the search of the whole course.");
    choose(0);
  }

  const holds = (entry, word) => (entry.lower ??= entry.text.toLowerCase()).includes(word);

  function meant(word) {
    counts ??= vocabulary(entries);
    return similar(word, counts) ?? word;
  }

  function code(text) {
    const element = document.createElement("code");
    element.textContent = text;
    return element;
  }

  function resultItem(entry, words) {
    const item = document.createElement("li"), link = document.createElement("a"), small = document.createElement("small");
    link.href = entry.href || "#";
    small.textContent = entry.where;
    const at = Math.max(0, entry.text.toLowerCase().indexOf(words[0]) - 40);
    const shown = (at ? "…" : "") + entry.text.slice(at, at + 130) + (entry.text.length > at + 130 ? "…" : "");
    const pattern = new RegExp(`(${words.map((w) => w.replace(/[.*+?^$${}()|[\]\\]/g, "\\$&")).join("|")})`, "ig");
    for (const part of shown.split(pattern)) {
      if (part && words.includes(part.toLowerCase())) {
        const mark = document.createElement("mark");
        mark.textContent = part;
        link.append(mark);
      } else link.append(part);
    }
    link.append(small);
    link.addEventListener("click", (event) => {
      dialog.close();
      if (follow(entry)) event.preventDefault();
    });
    item.append(link);
    return item;
  }

  function choose(index) {
    const links = [...list.querySelectorAll("a")];
    links.forEach((link, i) => link.classList.toggle("chosen", i === index));
    links[index]?.scrollIntoView({ block: "nearest" });
  }

  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")], now = links.findIndex((link) => link.classList.contains("chosen"));
    if (event.key === "ArrowDown") choose(Math.min(now + 1, links.length - 1));
    else if (event.key === "ArrowUp") choose(Math.max(now - 1, 0));
    else if (event.key === "Enter") links[now]?.click();
    else if (event.key === "Escape") dialog.close();
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  return () => { dialog.showModal(); input.select(); };
}
