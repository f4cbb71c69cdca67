// What the report does by itself: copy its blocks, sort and filter the tables. Without it, everything is shown.
"use strict";

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const block = document.getElementById(button.dataset.copy);
    button.textContent = (await copied(block)) ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 3000);
  });
}

// The clipboard is refused to pages that are opened from a disk in some browsers: then the old command, else a selection.
async function copied(block) {
  try {
    await navigator.clipboard.writeText(block.textContent + "\n");
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(block);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return document.execCommand("copy");
  }
}

for (const tools of document.querySelectorAll("[data-tools]")) {
  tools.hidden = false;
  const table = document.getElementById(tools.dataset.tools);
  const rows = [...table.tBodies];
  const filter = tools.querySelector("[data-filter]");
  const show = tools.querySelector("[data-show]");
  const order = tools.querySelector("[data-order]");
  const said = tools.querySelector("output");

  function narrow() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const kept = !show.value || show.value.split(",").includes(row.dataset.result);
      row.hidden = !(kept && words.every((word) => text.includes(word)));
    }
    const count = rows.filter((row) => !row.hidden).length;
    said.textContent = `${count} of ${rows.length} settings`;
  }

  function sort(key, ascending) {
    const missing = (row) => row.dataset[key] === "";
    const compare = (one, other) =>
      key === "name" ? one.dataset.name.localeCompare(other.dataset.name) : one.dataset[key] - other.dataset[key];
    const sorted = !key ? rows : [...rows].sort((one, other) =>
      missing(one) - missing(other) || (ascending ? 1 : -1) * compare(one, other));
    table.append(...sorted);
    for (const button of table.querySelectorAll("button.sort")) {
      const by = camel(button.dataset.sort) === key;
      if (by) button.closest("th").setAttribute("aria-sort", ascending ? "ascending" : "descending");
      else button.closest("th").removeAttribute("aria-sort");
    }
  }

  // Names, memory and the gate's difference begin with the smallest; everything else with the largest.
  const upwards = (key) => ["name", "memory", "gate"].includes(key);
  const camel = (name) => name.replace(/-(.)/g, (_, letter) => letter.toUpperCase());

  filter.addEventListener("input", narrow);
  show.addEventListener("change", narrow);
  order.addEventListener("change", () => sort(camel(order.value), upwards(order.value)));
  for (const button of table.querySelectorAll("button.sort")) {
    button.addEventListener("click", () => {
      const key = camel(button.dataset.sort);
      const now = button.closest("th").getAttribute("aria-sort");
      sort(key, now ? now === "descending" : upwards(key));
      order.value = [...order.options].some((option) => option.value === button.dataset.sort) ? button.dataset.sort : "";
    });
  }
  narrow();
}

for (const tool of document.querySelectorAll("[data-epoch]")) {
  const [input, said] = [tool.querySelector("input"), tool.querySelector("output")];
  const told = (seconds) => {
    // As `relay.base.clock.duration` tells it.
    if (seconds < 9.5) return `${Number(seconds.toPrecision(2))} s`;
    const whole = Math.round(seconds);
    for (const [unit, size, lesser, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
      const rest = String(Math.floor((whole % size) / part)).padStart(2, "0");
      if (whole >= size) return `${Math.floor(whole / size)} ${unit} ${rest} ${lesser}`;
    }
    return `${whole} s`;
  };
  const tell = () => {
    said.textContent = input.value > 0 ? `${told(input.value * tool.dataset.epoch)} of steps` : "";
  };
  tool.hidden = false;
  input.addEventListener("input", tell);
  tell();
}

// A link into a folded part opens it; some browsers do so by themselves.
function unfold() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = target && target.closest("details");
  if (folded) {
    folded.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", unfold);
unfold();
