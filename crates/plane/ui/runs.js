// The list of runs, with filters and live status, and the inbox of approvals.

import { get, listen, post } from "./api.js";
import { badge, el, link, say, table, when } from "./dom.js";

const STATUSES = ["awaiting_approval", "created", "claimed", "running", "completed", "failed", "cancelled"];
const FILTERS = ["status", "pool", "requester", "agent"];

/** Shows the list; returns what ends it. */
export async function runs(main, { query, go }) {
  const wanted = new URLSearchParams(FILTERS.concat("cursor").map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
  const place = el("div", {});
  const form = el("form", { class: "row", role: "search", onsubmit: (event) => { event.preventDefault(); apply(); }, onchange: apply },
    el("label", {}, "Status", el("select", { name: "status" }, el("option", { value: "" }, "any"),
      STATUSES.map((status) => el("option", { value: status, selected: query.get("status") === status }, status.replaceAll("_", " "))))),
    FILTERS.slice(1).map((name) => el("label", {}, name[0].toUpperCase() + name.slice(1), el("input", { name, value: query.get(name) ?? "", autocomplete: "off" }))),
    el("button", {}, "Filter"));
  function apply() {
    const chosen = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    go(`/ui/runs${chosen.size ? `?${chosen}` : ""}`);
  }
  main.replaceChildren(el("h1", {}, "Runs"), form, place);
  async function draw() {
    const page = await get(`/v1/runs?limit=50${wanted.size ? `&${wanted}` : ""}`);
    const selected = place.querySelector('tr[aria-selected="true"] a')?.getAttribute("href");
    place.replaceChildren(table(["Run", "Status", "Agent", "Pool", "Task", "Requested by", "Created"], page.runs.map((run) => [
      link(`/ui/runs/${run.runId}`, `${run.runId.slice(0, 12)}…`, { class: "mono", title: run.runId }),
      badge(run.state ?? run.status), run.agentKind, run.pool, run.prompt.slice(0, 140), run.requestedBy?.id ?? "", when(run.createdAt),
    ]), "No runs match."));
    if (selected) place.querySelector(`a[href="${selected}"]`)?.closest("tr").setAttribute("aria-selected", "true");
    const next = new URLSearchParams(wanted);
    if (page.next) {
      next.set("cursor", page.next);
      place.append(el("p", {}, link(`/ui/runs?${next}`, "Older runs")));
    }
  }
  await draw();
  return live(draw);
}

/** Shows what waits for someone's approval. */
export async function approvals(main) {
  const place = el("div", {});
  main.replaceChildren(el("h1", {}, "Approvals"), place);
  async function draw() {
    const page = await get("/v1/runs?status=awaiting_approval&limit=100");
    if (page.runs.length === 0) {
      place.replaceChildren(el("p", { class: "quiet" }, "Nothing waits for an approval."));
      return;
    }
    // What is there stays as it is: somebody may be writing a reason in it.
    const missing = new Map(page.runs.map((run) => [run.runId, run]));
    for (const shown of [...place.children]) if (!missing.delete(shown.dataset.run)) shown.remove();
    place.prepend(...[...missing.values()].map((run) => el("section", { class: "card", "data-run": run.runId },
      el("h2", {}, link(`/ui/runs/${run.runId}`, run.prompt.slice(0, 200))),
      el("p", {}, `${run.requestedBy?.id ?? "someone"} asks, for `, run.consentRequirements.join("; ") || "this run", ". ", when(run.createdAt)),
      decide(run.runId, draw))));
  }
  await draw();
  return live(draw);
}

/** Returns the form that approves or denies one run. */
export function decide(run, after) {
  const reason = el("input", { name: "reason", autocomplete: "off" });
  const act = (verb, body, done) => async () => {
    try {
      const answer = await post(`/v1/runs/${run}/${verb}`, body());
      say(answer.missing ? `Approved; still missing: ${JSON.stringify(answer.missing)}` : done);
      await after();
    } catch (error) { say(error.message); }
  };
  const deny = act("deny", () => (reason.value ? { reason: reason.value } : {}), "Denied.");
  return el("form", { class: "row", "aria-label": "Decide", onsubmit: (event) => { event.preventDefault(); return deny(); } },
    el("button", { type: "button", class: "main", "data-key": "a", title: "Key: a", onclick: act("approve", () => ({}), "Approved.") }, "Approve"),
    el("label", {}, "Reason to deny", reason),
    el("button", { class: "danger", title: "Key: d" }, "Deny"));
}

/** Draws again when some run changes, at most a few times a second; returns what ends it. */
export function live(draw) {
  let timer = null;
  const stop = listen("/v1/events", {
    change: () => { timer ??= setTimeout(() => { timer = null; draw().catch(() => {}); }, 250); },
  });
  return () => { clearTimeout(timer); stop(); };
}
