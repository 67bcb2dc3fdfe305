// Routes, keys and themes. Every view is a function that fills the page and returns what ends it.

import { Refused } from "./api.js";
import { el, link, say } from "./dom.js";
import { leave, login, policy, runners } from "./house.js";
import { approvals, runs } from "./runs.js";
import { run } from "./run.js";

const main = document.getElementById("main");
const PLACES = [["runs", "Runs", "r"], ["approvals", "Approvals", "a"], ["runners", "Runners", "n"], ["policy", "Policy", "p"]];
let stop = null;
let turn = 0;

function go(path) {
  history.pushState(null, "", path);
  return show();
}

function head(current) {
  document.getElementById("top").replaceChildren(
    el("strong", {}, "Warrant"),
    el("nav", { "aria-label": "Places" }, PLACES.map(([name, text]) => link(`/ui/${name}`, text, { "aria-current": name === current ? "page" : null }))),
    el("button", { onclick: theme, title: "Key: t" }, "Theme"),
    el("button", { onclick: leave }, "Log out"));
}

async function show() {
  const mine = ++turn;
  stop?.();
  stop = null;
  const [place = "runs", ...parts] = location.pathname.replace(/^\/ui\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const context = { parts, query: new URLSearchParams(location.search), go };
  const views = { runs: parts.length > 0 ? run : runs, approvals, runners, policy };
  head(place);
  document.title = `${parts[0] ?? place} · Warrant`;
  try {
    if (!views[place]) throw new Refused(404, { error: "There is no such page." });
    const ended = await views[place](main, context);
    if (mine === turn) stop = ended ?? null;
    else ended?.();
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401) return welcome();
    main.replaceChildren(el("h1", {}, error.status === 404 ? "Not found" : "That did not work"), el("p", {}, error.message));
  }
}

function welcome() {
  document.getElementById("top").replaceChildren(el("strong", {}, "Warrant"));
  login(main, show);
}

/** Turns from light to dark and back; the choice lasts as long as the page. */
function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
}

function select(step) {
  const rows = [...main.querySelectorAll("tbody tr")];
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  rows[at]?.removeAttribute("aria-selected");
  next.setAttribute("aria-selected", "true");
  next.scrollIntoView({ block: "nearest" });
}

let prefix = null;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const place = prefix === "g" && PLACES.find(([, , key]) => key === event.key);
  prefix = event.key === "g" ? "g" : null;
  if (place) return void go(`/ui/${place[0]}`);
  const keys = {
    j: () => select(1), k: () => select(-1), t: theme,
    Enter: () => event.target === document.body && main.querySelector('tr[aria-selected="true"] a')?.click(),
    "/": () => { event.preventDefault(); main.querySelector("select, input")?.focus(); },
    "?": () => say("j k move · Enter opens · / filters · g r runs · g a approvals · g n runners · g p policy · t theme"),
  };
  keys[event.key]?.();
});

document.addEventListener("click", (event) => {
  const anchor = event.target.closest("a[data-route]");
  if (!anchor || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(anchor.getAttribute("href")).then(() => main.focus({ preventScroll: true }));
});
addEventListener("popstate", show);

show().catch((error) => say(error.message));
