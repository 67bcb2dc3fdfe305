// Routes, keys and themes. Every view is a function that fills the page and returns what ends it.

import { Refused, redeem } from "./api.js";
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
  const rows = [...main.querySelectorAll("tbody tr, section[data-run]")];
  if (rows.length === 0) return;
  const at = rows.findIndex((row) => row.getAttribute("aria-selected") === "true");
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  rows[at]?.removeAttribute("aria-selected");
  next.setAttribute("aria-selected", "true");
  next.scrollIntoView({ block: "nearest" });
}

/** Returns where the keys of a decision work: in what is selected, else where there is only one. */
function decision() {
  const selected = main.querySelector('section[aria-selected="true"] form[aria-label="Decide"]');
  const all = main.querySelectorAll('form[aria-label="Decide"]');
  return selected ?? (all.length === 1 ? all[0] : null);
}

let prefix = null;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const place = prefix === "g" && PLACES.find(([, , key]) => key === event.key);
  prefix = event.key === "g" ? "g" : null;
  if (place) return void go(`/ui/${place[0]}`);
  const keys = {
    j: () => select(1), k: () => select(-1), t: theme,
    Enter: () => [document.body, main].includes(event.target) && main.querySelector('[aria-selected="true"] a')?.click(),
    a: () => decision()?.querySelector('[data-key="a"]').click(),
    d: () => { event.preventDefault(); decision()?.querySelector("input").focus(); },
    "/": () => { event.preventDefault(); main.querySelector("select, input")?.focus(); },
    "?": () => say("j k move · Enter opens · / filters · a approves · d denies · g r runs · g a approvals · g n runners · g p policy · t theme"),
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

/** Logs in with the ticket of an address that the plane printed. It leaves the address first. */
async function begin() {
  const ticket = /^#ticket=([0-9a-f]{64})$/.exec(location.hash)?.[1];
  if (ticket) {
    history.replaceState(null, "", location.pathname + location.search);
    await redeem(ticket).catch((error) => say(error.message));
  }
  await show();
}

begin().catch((error) => say(error.message));
