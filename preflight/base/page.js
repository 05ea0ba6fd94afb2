"use strict";
// A number at the start of a cell, with its binary unit if it has one; NaN where there is none.
function amount(text) {
  const found = /^\s*([-+]?[0-9][0-9,]*(?:\.[0-9]+)?)(?:\s*([KMGTPE])i?B\b)?/.exec(text);
  if (!found) return NaN;
  const power = found[2] ? "KMGTPE".indexOf(found[2]) + 1 : 0;
  return Number(found[1].replace(/,/g, "")) * 1024 ** power;
}
const words = new Intl.Collator("en", { numeric: true });
function sorter(head, table) {
  const numeric = head.classList.contains("number");
  const at = head.cellIndex;
  return () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => {
      const cell = row.cells[at];
      const key = cell.querySelector("[data-sort]");
      const text = cell.textContent;
      return { row, text, number: key ? Number(key.dataset.sort) : numeric ? amount(text) : NaN };
    });
    const way = down ? -1 : 1;
    // Cells without a number, or without any text, stand last either way; equals keep their order.
    rows.sort((a, b) => {
      const last = (c) => (numeric ? Number.isNaN(c.number) : c.text.trim() === "");
      if (last(a) || last(b)) return last(a) - last(b);
      if (Number.isNaN(a.number) || Number.isNaN(b.number))
        return way * words.compare(a.text, b.text);
      return way * (a.number - b.number);
    });
    body.append(...rows.map((each) => each.row));
  };
}
for (const table of document.querySelectorAll("table.sortable"))
  for (const head of table.tHead.rows[0].cells)
    head.querySelector("button").addEventListener("click", sorter(head, table));
// Commands can be taken with a click; where the browser gives no clipboard, they are selected.
for (const each of document.querySelectorAll("pre.copied")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(each.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(each);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  each.before(button);
}
// Paper cannot be clicked: where all of it is asked for, what is folded is printed too.
let folded = [];
addEventListener("beforeprint", () => {
  const some = document.getElementById("print-all");
  if (some && !some.checked) return;
  folded = Array.from(document.querySelectorAll("details:not([open])"));
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => {
  for (const each of folded) each.open = false;
  folded = [];
});
