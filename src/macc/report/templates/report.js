
"use strict";
// Sorting: a heading sorts its table, and again the other way round; what has no value stays last.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      const first = column === 0 ? "ascending" : heading.dataset.first;
      const other = { ascending: "descending", descending: "ascending" };
      const order = before ? other[before] : first;
      for (const each of headings) each.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const body = table.tBodies[0];
      const rows = [...body.rows].map((row) => {
        const cell = row.cells[column];
        return { row, text: cell.textContent.trim(), value: cell.dataset.value };
      });
      rows.sort((a, b) => {
        if (column === 0) return sign * a.text.localeCompare(b.text, "en", { numeric: true });
        if (a.value === "" || b.value === "") return (a.value === "") - (b.value === "");
        return sign * (Number(a.value) - Number(b.value));
      });
      body.append(...rows.map((each) => each.row));
    });
  });
}
// Tables that are wider than the page say that they scroll.
const widths = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    target.previousElementSibling.hidden = target.scrollWidth <= target.clientWidth;
  }
});
for (const hint of document.querySelectorAll(".more")) widths.observe(hint.nextElementSibling);
// Runs: one is shown at a time; arrows, Home and End move between them.
const list = document.querySelector("[role=tablist]");
if (list) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const show = (chosen) => {
    for (const tab of tabs) {
      const selected = tab === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !selected;
    }
  };
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const to = {
        ArrowRight: index === last ? 0 : index + 1,
        ArrowLeft: index === 0 ? last : index - 1,
        Home: 0,
        End: last,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      show(tabs[to]);
      tabs[to].focus();
    });
  });
  list.hidden = false;
  show(tabs[0]);
}
// Theme: the system's until the button is pressed; remembered where the browser allows it.
const button = document.getElementById("theme");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const memory = (value) => {
  try {
    if (value) localStorage.setItem("macc-theme", value);
    return localStorage.getItem("macc-theme");
  } catch {
    return null;
  }
};
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
const label = () => {
  button.textContent = isDark() ? "Light theme" : "Dark theme";
};
if (["light", "dark"].includes(memory())) root.dataset.theme = memory();
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  memory(root.dataset.theme);
  label();
});
dark.addEventListener("change", label);
button.hidden = false;
label();
