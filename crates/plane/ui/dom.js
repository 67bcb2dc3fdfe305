// Builds elements from values. Text is always text: nothing here reads markup.

/** Returns an element with attributes, listeners (`onclick`) and children. */
export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Returns a link that stays on the page. */
export function link(href, text, attributes) {
  return el("a", { href, "data-route": true, ...attributes }, text);
}

/** Returns a table; every row is a list of cells. */
export function table(heads, rows, empty) {
  if (rows.length === 0) return el("p", { class: "quiet" }, empty);
  return el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell))))));
}

/** Returns pairs as a list of terms. */
export function terms(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

const TONES = {
  completed: "good", allowed: "good", created: "live", queued: "live", leased: "live", claimed: "live",
  running: "live", finishing: "live", stopping: "warn", awaiting_approval: "warn", cancelled: "warn",
  failed: "bad", denied: "bad", expired: "bad", lost: "bad", blocked: "bad", revoked: "bad",
};

/** Returns a word with its tone. */
export function badge(word) {
  const name = String(word ?? "unknown");
  return el("span", { class: `badge ${TONES[name.replaceAll("-", "_")] ?? ""}` }, name.replaceAll("_", " "));
}

/** Returns a time for people, with the exact one on hover. */
export function when(text) {
  if (!text) return "";
  const date = new Date(text);
  return el("time", { datetime: text, title: text }, Number.isNaN(date.getTime()) ? text : date.toLocaleString());
}

/** Returns a digest that fits a line, whole on hover. */
export function short(digest) {
  return digest ? el("code", { title: digest }, `${String(digest).slice(0, 12)}…`) : "";
}

/** Tells the person something for a while. */
export function say(text) {
  const line = el("p", {}, text);
  document.getElementById("said").append(line);
  setTimeout(() => line.remove(), 6000);
}
