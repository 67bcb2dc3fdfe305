// Runners, the policy with its history and an explanation on request, and the log-in.

import { get, logIn, logOut, post } from "./api.js";
import { badge, el, say, short, table, when } from "./dom.js";

/** Shows the enrolled runners. */
export async function runners(main) {
  const { runners: all } = await get("/v1/runners");
  main.replaceChildren(el("h1", {}, "Runners"), table(["Runner", "Pool", "Key", "Enrolled", "Last seen", ""], all.map((runner) =>
    [el("code", {}, runner.runnerId), runner.pool, el("code", {}, runner.keyId), when(runner.enrolledAt), when(runner.lastSeenAt), runner.revoked ? badge("revoked") : ""]), "No runner is enrolled."));
}

/** Shows the policy in force, and explains what it says of a request. */
export async function policy(main) {
  const [now, past] = await Promise.all([get("/v1/policy"), get("/v1/policy/history").catch(() => ({ policies: [] }))]);
  const answer = el("div", { role: "region", "aria-live": "polite" });
  main.replaceChildren(el("h1", {}, "Policy"), el("p", {}, "In force: ", el("code", {}, now.policyHash)),
    el("h2", {}, "Explain"), explain(answer), answer,
    el("h2", {}, "Document"), el("pre", { tabindex: "0" }, JSON.stringify(now.policy, null, 2)),
    now.rules ? [el("h2", {}, "Rules"), el("pre", { tabindex: "0" }, now.rules)] : null,
    el("h2", {}, "History"), table(["Policy", "Set by", "When"], (past.policies ?? []).map((row) => [short(row.policyHash), row.setBy, when(row.createdAt)]), "No earlier policy is kept."));
}

/** Asks the plane what it would say, without asking for a run. */
function explain(answer) {
  const field = (name, label, value) => el("label", {}, label, el("input", { name, value, autocomplete: "off" }));
  async function ask(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const words = (name) => String(form.get(name)).split(/[\s,]+/).filter(Boolean);
    const request = {
      requestedBy: { kind: "human", id: "page" }, agentKind: String(form.get("agent")), prompt: String(form.get("prompt")), pool: String(form.get("pool")),
      secretNames: words("secrets"), network: { defaultDeny: true, allowHosts: words("hosts") }, budget: {}, disclosure: "none",
      workspace: { version: "warrant.manifest.v1", baseRef: "0".repeat(40), bundleHash: "0".repeat(64), untrackedFiles: [], deniedPatterns: [], deniedPaths: [] },
    };
    try {
      const report = await post("/v1/runs", { request, dryRun: true });
      const { decision, reason, consentRequirements } = report.policyDecision;
      answer.replaceChildren(el("div", { class: "card" }, el("p", {}, badge(decision === "allow" ? "allowed" : "awaiting_approval"), ` ${reason}`),
        report.isolation ? el("p", { class: "quiet" }, `Tier: ${report.isolation}`) : null,
        consentRequirements.length ? el("ul", {}, consentRequirements.map((name) => el("li", {}, name))) : null));
    } catch (error) {
      answer.replaceChildren(el("div", { class: "card" }, el("p", {}, badge(error.status === 403 ? "denied" : "failed"), ` ${error.message}`)));
    }
  }
  return el("form", { class: "row", onsubmit: ask, "aria-label": "Explain" }, field("agent", "Agent", "command"), field("pool", "Pool", "default"), field("prompt", "Task or script", "npm test"),
    field("hosts", "Hosts", ""), field("secrets", "Secrets", ""), el("button", { class: "main" }, "Explain"));
}

/** Asks for a token. It leaves this page at once and does not come back. */
export function login(main, after) {
  const token = el("input", { name: "token", type: "password", autocomplete: "off", required: true, "aria-label": "Token" });
  const wrong = el("p", { class: "bad", role: "alert" });
  async function submit(event) {
    event.preventDefault();
    wrong.replaceChildren();
    try {
      await logIn(token.value);
      await get("/v1/runs?limit=1");
      token.value = "";
      await after();
    } catch (error) {
      await logOut().catch(() => {});
      wrong.replaceChildren(error.status === 401 ? "The plane does not know this token." : error.message);
    }
  }
  main.replaceChildren(el("form", { class: "card login", onsubmit: submit },
    el("h1", {}, "Log in to Warrant"), el("p", { class: "quiet" }, "With the token of a principal of this plane. The page keeps no copy of it."),
    el("label", {}, "Token", token), wrong, el("p", {}, el("button", { class: "main" }, "Log in"))));
  token.focus();
}

/** Ends the session. */
export async function leave() {
  await logOut().catch((error) => say(error.message));
  location.assign("/ui/");
}
