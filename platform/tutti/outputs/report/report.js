"use strict";
// Hovering, sorting, filtering. Without it the page shows the same.
const memory = {  // which MLflow's frame does not give
  get: key => { try { return sessionStorage.getItem(key); } catch { return null; } },
  set: (key, value) => { try { sessionStorage.setItem(key, value); } catch { /* then a reload begins anew */ } },
};
const all = (query, root = document) => [...root.querySelectorAll(query)];
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));

all("svg title").forEach(title => { title.parentNode.dataset.tip = title.textContent; title.remove(); });
function light(key) {
  all("svg").forEach(svg => svg.classList.toggle("dim", !!key && all("[data-k]", svg).some(each => each.dataset.k === key)));
  all("[data-k]").forEach(each => each.classList.toggle("on", each.dataset.k === key));
}
let lit = "";
document.addEventListener("pointermove", event => {
  const mark = event.target.closest("[data-tip]"), key = event.target.closest("[data-k]")?.dataset.k ?? "";
  if (key !== lit) light(lit = key);
  tip.style.display = mark ? "block" : "none";
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const x = event.clientX + 14, y = event.clientY + 14;
  tip.style.left = `${Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : y}px`;
});

if (self !== top && origin === "null") all('a[href^="http"]').forEach(each => each.removeAttribute("href"));  // MLflow's frame lets no link out

const value = cell => cell.dataset.v ?? cell.textContent.trim();
all("table.sorts").forEach(table => {
  const heads = all("th", table), body = table.tBodies[0];
  heads.forEach((head, place) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === (head.classList.contains("n") ? "descending" : "ascending");
      const sign = head.classList.contains("n") === !down ? -1 : 1;
      heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign < 0 ? "descending" : "ascending");
      const keyed = [...body.rows].map(row => [value(row.cells[place]), row]);
      const number = text => text === "" || text === "–" ? -Infinity * sign : Number(text);
      const numbers = keyed.every(([text]) => !Number.isNaN(number(text)));
      keyed.sort(([a], [b]) => numbers ? sign * (number(a) - number(b) || 0) : sign * a.localeCompare(b, undefined, { numeric: true }));
      body.append(...keyed.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
});

all(".tools").forEach(tools => {
  const table = document.getElementById(tools.dataset.table), rows = [...table.tBodies[0].rows];
  const box = tools.querySelector("input"), buttons = all("button", tools), shown = tools.querySelector(".shown");
  const name = `tutti ${location.pathname} ${tools.dataset.table}`;
  table.apply = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const pressed = buttons.filter(each => each.getAttribute("aria-pressed") === "true").map(each => each.dataset.f);
    rows.forEach(row => {
      const text = row.textContent.toLowerCase(), cell = !table.cell || row.dataset.c === table.cell;
      row.hidden = !(cell && words.every(word => text.includes(word)) && (!pressed.length || pressed.includes(row.dataset.f)));
    });
    const count = rows.filter(row => !row.hidden).length;
    shown.textContent = count === rows.length ? "" : `${count} of ${rows.length} shown`;
    memory.set(name, JSON.stringify([box.value, pressed]));
  };
  const [words, pressed] = JSON.parse(memory.get(name) ?? "null") ?? ["", buttons.filter(each => each.getAttribute("aria-pressed") === "true").map(each => each.dataset.f)];
  box.value = words;
  buttons.forEach(button => {
    button.setAttribute("aria-pressed", pressed.includes(button.dataset.f));
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
      table.apply();
    });
  });
  box.addEventListener("input", table.apply);
  tools.hidden = false;
  table.apply();
});

all(".matrix td").forEach(cell => cell.addEventListener("click", () => {
  const matrix = cell.closest("table"), table = document.getElementById(matrix.dataset.table);
  const chosen = !cell.classList.contains("on");
  all("td.on", matrix).forEach(each => each.classList.remove("on"));
  cell.classList.toggle("on", chosen);
  if (!table) return;
  table.cell = chosen ? cell.dataset.c : "";
  if (chosen) all(`.tools[data-table="${table.id}"] button`).forEach(each => each.setAttribute("aria-pressed", "false"));
  table.apply();
  if (chosen) table.closest(".errors").scrollIntoView({ behavior: "smooth" });
}));

const links = all("nav a"), parts = links.map(link => document.getElementById(link.hash.slice(1)));
const follow = () => {
  const place = Math.max(parts.findLastIndex(part => part.getBoundingClientRect().top < 120), 0);
  links.forEach((link, index) => link.classList.toggle("on", index === place));
};
addEventListener("scroll", follow, { passive: true });
follow();
const kept = `tutti ${location.pathname} scroll`;  // of a page that reloads itself
if (document.querySelector("meta[http-equiv=refresh]")) {
  scrollTo(0, Number(memory.get(kept) ?? 0));
  addEventListener("scroll", () => memory.set(kept, scrollY), { passive: true });
}
