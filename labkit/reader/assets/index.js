"use strict";
/* The start page: the search of the whole book, and dark or light. */
(() => {
  const search = startSearch(() => [], () => false), actions = { search, theme: toggleTheme };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => actions[button.dataset.do]());
  document.addEventListener("keydown", (event) => {
    const action = { "/": search, t: toggleTheme }[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
    event.preventDefault();
    action();
  });
})();
