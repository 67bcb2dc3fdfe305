// One run: its timeline and log while they happen, what it changed and reached, and its receipt.

import { blobText, get, listen, post } from "./api.js";
import { badge, el, link, say, short, table, terms, when } from "./dom.js";
import { decide } from "./runs.js";
import { questions } from "./story.js";

const TABS = { timeline, log, diff, network, secrets, receipt };
const ENDED = new Set(["completed", "failed", "cancelled", "denied", "expired", "lost"]);

/** Shows a run; returns what ends it. */
export async function run(main, { parts: [id, tab = "timeline"], go }) {
  const path = `/v1/runs/${encodeURIComponent(id)}`;
  const view = await get(path);
  const stops = [];
  const state = { view, path, id, stops, of: (type) => state.view.events.map((item) => item.event).filter((event) => event.type === type) };
  const head = el("div", {});
  const place = el("div", { role: "tabpanel", "aria-label": tab });
  const shown = TABS[tab] ? tab : "timeline";
  function drawHead() {
    const status = state.view.state ?? state.view.status;
    head.replaceChildren(
      el("h1", {}, el("span", { class: "mono" }, id), " ", badge(status)),
      terms([["Created", when(state.view.createdAt)], ["Updated", when(state.view.updatedAt)], ["Why it did not end well", state.view.failureMessage],
        ["Needs approval for", (state.view.consentRequirements ?? []).join("; ")], ["Approved by", (state.view.approvedBy ?? []).join(", ")], ["Until", when(state.view.deadline)]]),
      status === "awaiting_approval" || status === "awaiting-approval" ? decide(id, refresh) : null,
      ENDED.has(status) ? null : el("p", {}, el("button", { class: "danger", onclick: cancel }, "Cancel run")));
  }
  async function cancel() {
    try { await post(`${path}/cancel`); say("Cancelled."); await refresh(); } catch (error) { say(error.message); }
  }
  async function refresh() {
    state.view = await get(path);
    drawHead();
    await TABS[shown](place, state);
  }
  drawHead();
  const tabs = el("div", { class: "tabs", role: "tablist" }, Object.keys(TABS).map((name) =>
    link(`/ui/runs/${id}/${name}`, name[0].toUpperCase() + name.slice(1), { role: "tab", "aria-current": name === shown ? "page" : null })));
  main.replaceChildren(head, tabs, place);
  await TABS[shown](place, state);
  if (!ENDED.has(state.view.state ?? state.view.status)) {
    let timer = null;
    const soon = () => { timer ??= setTimeout(() => { timer = null; refresh().catch(() => {}); }, 300); };
    stops.push(listen(`${path}/events`, {
      event: soon,
      state: soon,
      end: () => { refresh().catch(() => {}); },
    }));
  }
  return () => stops.forEach((stop) => stop());
}

async function timeline(place, { view }) {
  place.replaceChildren(view.events.length === 0 ? el("p", { class: "quiet" }, "Nothing has happened yet.") :
    el("ol", { class: "time" }, view.events.map(({ seq, ts, event }) => {
      const { type, ...rest } = event;
      return el("li", {}, el("span", { class: "quiet" }, String(seq)), el("time", { datetime: ts, title: ts }, ts.slice(11, 23)), el("strong", {}, type), el("span", { class: "mono" }, detail(rest)));
    })));
}

/** Says an event's members on one line. */
function detail(members) {
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  return Object.entries(members).map(([name, value]) => `${name}=${text(value)}`).join("  ").slice(0, 600);
}

async function log(place, state) {
  const digest = state.of("artifact.created").filter((event) => event.kind === "log").at(-1)?.hash;
  if (digest) {
    place.replaceChildren(el("pre", { tabindex: "0" }, await blobText(digest)));
    return;
  }
  if (ENDED.has(state.view.state ?? state.view.status)) {
    place.replaceChildren(el("p", { class: "quiet" }, "The run said nothing."));
    return;
  }
  if (state.logging) return;
  state.logging = true;
  const shown = el("pre", { tabindex: "0", "aria-live": "off" });
  const decoder = new TextDecoder();
  place.replaceChildren(el("p", { class: "quiet" }, "Live."), shown);
  state.stops.push(listen(`${state.path}/logs`, {
    log: (data) => {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      shown.append(decoder.decode(bytes, { stream: true }));
      shown.scrollTop = shown.scrollHeight;
    },
    end: () => {},
  }));
}

/** Says what is known of a run without a diff. */
function unchanged(state) {
  const capture = state.of("capture.recorded").at(-1);
  if (!capture) return "No change is recorded.";
  if (capture.extent !== "complete") return `What the run changed was not captured: ${capture.reason ?? "no reason given"}.`;
  return capture.files === 0 ? "The run changed no files." : `${capture.files} changed files, of which no diff was kept.`;
}

async function diff(place, state) {
  const digest = state.of("artifact.created").filter((event) => event.kind === "diff").at(-1)?.hash;
  if (!digest) {
    place.replaceChildren(el("p", { class: "quiet" }, unchanged(state)));
    return;
  }
  const files = state.of("file.changed");
  const tone = (line) => (/^(diff |index |--- |\+\+\+ |new file|deleted file|rename |old mode|new mode)/.test(line) ? "file" : line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "");
  const lines = (await blobText(digest)).split("\n").slice(0, 20000);
  place.replaceChildren(
    el("p", { class: "quiet" }, `${files.length} changed files. Take them home with: warrant pull ${state.id}`),
    el("pre", { tabindex: "0" }, lines.map((line) => el("span", { class: tone(line) }, `${line}\n`))));
}

async function network(place, state) {
  const rows = new Map();
  for (const event of state.of("network.connected")) {
    const key = `${event.host}:${event.port ?? ""} ${event.decision}`;
    const row = rows.get(key) ?? { ...event, count: 0, bytesIn: 0, bytesOut: 0 };
    row.count += event.count ?? 1;
    row.bytesIn += event.bytesIn ?? 0;
    row.bytesOut += event.bytesOut ?? 0;
    rows.set(key, row);
  }
  const models = state.of("model.called");
  place.replaceChildren(
    table(["Host", "Port", "Decision", "Why", "Times", "Bytes in", "Bytes out"], [...rows.values()].map((row) =>
      [el("code", {}, row.host), row.port ?? "", badge(row.decision), row.why ?? "", String(row.count), String(row.bytesIn), String(row.bytesOut)]), "The run reached for nothing."),
    models.length === 0 ? null : [el("h2", {}, "Models"), table(["Provider", "Model"], models.map((event) => [event.provider, event.model]), "")]);
}

async function secrets(place, state) {
  place.replaceChildren(
    table(["Secret", "Scope", "Released"], state.view.events.filter((item) => item.event.type === "secret.released").map((item) =>
      [el("code", {}, item.event.name), item.event.scope, when(item.ts)]), "No secret was released."),
    el("p", { class: "quiet" }, "Names and scopes only; values are never shown, here or in evidence."));
}

async function receipt(place, state) {
  let bundle;
  try { bundle = await get(`${state.path}/bundle`); } catch (error) {
    place.replaceChildren(el("p", { class: "quiet" }, error.status === 404 ? "There is no receipt yet." : error.message));
    return;
  }
  const posture = Object.entries(bundle.receipt.posture?.components ?? {});
  place.replaceChildren(
    ...questions(bundle, (hash) => state.of("artifact.created").some((event) => event.hash === hash)).map(({ question, answers }) =>
      el("section", { class: "card" }, el("h2", {}, question), el("ul", {}, answers.map((answer) => el("li", {}, answer))))),
    el("h2", {}, "What held"),
    table(["Component", "Enforcement", "Evidence", "Source"], posture.map(([name, held]) => [name, held.enforcement, held.evidence, held.source]), "The receipt tells no posture."),
    el("h2", {}, "Proof"),
    terms([["Contract", short(bundle.receipt.contractHash)], ["Chain head", short(bundle.receipt.eventsHead)], ["Events", String(bundle.receipt.eventCount)],
      ["Runner key", bundle.receipt.runner?.keyId], ["Signatures", (bundle.receipt.signatures ?? []).map((signature) => `${signature.signer} ${signature.keyId}`).join(", ")]]),
    el("p", {}, el("a", { href: `/ui/api${state.path}/bundle`, download: `${state.id}.bundle.json` }, "Download the bundle"), " and check it offline, against keys you trust: ",
      el("code", {}, `warrant verify ${state.id}.bundle.json --trust plane.pub.pem --trust runner.pub.pem`)));
}
