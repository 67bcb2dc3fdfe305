// Walks through the web page in a real browser, as a person would, and says what it saw.
//
// Environment: WARRANT_URL, WARRANT_TOKEN (an admin's), WARRANT_TICKET, and runs: WARRANT_WAITING and
// WARRANT_REFUSED wait for approval, WARRANT_ENDED is over, WARRANT_WORKED did something, and
// WARRANT_LIVE runs, held by a runner whose claim token is WARRANT_CLAIM and who ends it when asked.
// Every check throws when it fails; the last line is `all checks passed`.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const { WARRANT_URL: url, WARRANT_TOKEN: token, WARRANT_TICKET: ticket, WARRANT_WAITING: waiting, WARRANT_REFUSED: refused,
  WARRANT_ENDED: ended, WARRANT_WORKED: worked, WARRANT_LIVE: live, WARRANT_CLAIM: claim } = process.env;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"];
const PATIENCE = { timeout: 30_000 };

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: FLAGS });
const context = await browser.newContext({ colorScheme: "dark" });
const page = await context.newPage();
const complaints = [];
page.on("pageerror", (error) => complaints.push(String(error)));
page.on("console", (message) => {
  const expected = /401|403|404/.test(message.text());
  if (message.type() === "error" && !expected) complaints.push(message.text());
});
const seen = (selector, text) => page.locator(selector, text === undefined ? {} : { hasText: text }).first().waitFor(PATIENCE);
const done = (what) => console.log(`ok ${what}`);

// The address that a plane prints logs in once, and keeps nothing of it.
await page.goto(`${url}/ui/#ticket=${ticket}`);
await seen("h1", "Runs");
assert.equal(page.url(), `${url}/ui/`);
await page.getByRole("button", { name: "Log out" }).click();
await seen("h1", "Log in");
await page.goto(`${url}/ui/runs#ticket=${ticket}`);
await seen("h1", "Log in");
assert.equal(new URL(page.url()).hash, "");
done("ticket logs in once");

// A deep link asks for the token first, under a strict policy.
const first = await page.goto(`${url}/ui/runs/${waiting}`);
const policy = first.headers()["content-security-policy"];
assert.match(policy, /default-src 'none'/);
assert.doesNotMatch(policy, /unsafe/);
await seen("h1", "Log in");
done("deep link asks for the token");

await page.fill('input[name="token"]', "no-such-token");
await page.click("button.main");
await seen('[role="alert"]', "does not know");
done("wrong token is told");

await page.fill('input[name="token"]', token);
await page.click("button.main");
await seen("h1", waiting);
assert.equal(new URL(page.url()).pathname, `/ui/runs/${waiting}`);
done("deep link is reached after the log-in");

// The token is nowhere a script could read it.
const kept = await page.evaluate(() => ({ local: localStorage.length, session: sessionStorage.length, cookie: document.cookie }));
assert.deepEqual(kept, { local: 0, session: 0, cookie: "" });
const [cookie] = await context.cookies(`${url}/ui/`);
assert.equal(cookie.httpOnly, true);
assert.equal(cookie.sameSite, "Strict");
assert.notEqual(cookie.value, token);
done("session is an HttpOnly cookie, and no storage holds the token");

// A request that another site could make a browser send changes nothing.
const forged = await fetch(`${url}/ui/api/v1/runs/${waiting}/cancel`, { method: "POST", headers: { cookie: `${cookie.name}=${cookie.value}`, "content-type": "application/json" }, body: "{}" });
assert.equal(forged.status, 403);
const crossed = await fetch(`${url}/ui/api/v1/runs`, { headers: { cookie: `${cookie.name}=${cookie.value}`, "sec-fetch-site": "cross-site" } });
assert.equal(crossed.status, 403);
const stranger = await fetch(`${url}/ui/api/v1/runs`);
assert.equal(stranger.status, 401);
done("forged requests are refused");

// Keys lead around; what waits can be approved.
await page.locator("h1").first().waitFor(PATIENCE);
await page.keyboard.press("g");
await page.keyboard.press("a");
await seen("h1", "Approvals");
const card = page.locator(`section[data-run="${waiting}"]`);
await card.waitFor(PATIENCE);
assert.match(await card.innerText(), /<img src=x onerror=/);
assert.equal(await page.evaluate(() => window.planted), undefined);
done("text of a request stays text");
await card.getByRole("button", { name: "Approve" }).click();
await card.waitFor({ state: "detached", ...PATIENCE });
done("waiting run is approved from the inbox");
await page.evaluate(() => document.activeElement?.blur());
await page.keyboard.press("j");
await seen(`section[data-run="${refused}"][aria-selected="true"]`);
await page.keyboard.press("d");
await page.keyboard.type("not today");
await page.keyboard.press("Enter");
await page.locator(`section[data-run="${refused}"]`).waitFor({ state: "detached", ...PATIENCE });
const told = await (await fetch(`${url}/v1/runs/${refused}`, { headers: { authorization: `Bearer ${token}` } })).json();
assert.equal(told.state, "denied");
assert.match(JSON.stringify(told.events), /not today/);
done("waiting run is denied by keys alone, with a reason");

// The list follows what happens elsewhere, without a reload.
await page.keyboard.press("g");
await page.keyboard.press("r");
await seen("h1", "Runs");
await seen(`a[href="/ui/runs/${waiting}"]`);
const cancelled = await fetch(`${url}/v1/runs/${waiting}/cancel`, { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: "{}" });
assert.equal(cancelled.status, 200);
await page.locator("tr", { has: page.locator(`a[href="/ui/runs/${waiting}"]`) }).locator(".badge", { hasText: "cancelled" }).waitFor(PATIENCE);
done("status is live");
await page.selectOption('select[name="status"]', "cancelled");
await page.waitForURL(/status=cancelled/, PATIENCE);
await seen(`a[href="/ui/runs/${waiting}"]`);
assert.equal(await page.locator(`a[href="/ui/runs/${ended}"]`).count(), 0);
done("filters are in the address");
await page.evaluate(() => document.activeElement?.blur());
await page.keyboard.press("j");
await seen('tr[aria-selected="true"]');
await page.keyboard.press("Enter");
await seen("h1", "run_");
await page.goBack();
await seen("h1", "Runs");
done("keys select and open, and the way back works");

// A run is watched while it happens: its log, and what becomes of it.
await page.goto(`${url}/ui/runs/${live}/log`);
await seen("h1 .badge", "running");
await seen('[role="tabpanel"]', "Live.");
const say = async (text) => {
  const sent = await fetch(`${url}/v1/runs/${live}/logs`, { method: "POST", headers: { authorization: `Bearer ${claim}` }, body: text });
  assert.equal(sent.status, 200);
};
await say("first words\n");
await seen("pre", "first words");
await say("<b>second</b> words\n");
await seen("pre", "<b>second</b> words");
done("log is live");
await page.getByRole("button", { name: "Cancel run" }).click();
await seen("h1 .badge", "cancelled");
await seen("pre", "all of the log");
await page.locator(`[role="tab"][href="/ui/runs/${live}/timeline"]`).click();
await seen("ol.time li", "run.cancelled");
done("status of a run is live to its end");

// A run that ended tells its story.
await page.goto(`${url}/ui/runs/${ended}/receipt`);
for (const question of ["What moved?", "Why?", "Who approved?", "What saw it?", "How to reproduce or revoke it?"]) await seen("h2", question);
done("receipt answers five questions");
for (const [tab, text] of [["timeline", "run."], ["network", "reached for nothing"], ["secrets", "No secret"], ["diff", "No change is recorded"], ["log", "said nothing"]]) {
  await page.locator(`[role="tab"][href="/ui/runs/${ended}/${tab}"]`).click();
  await seen('[role="tabpanel"]', text);
}
done("every tab of a run opens");

// A run that worked shows what it did, where the test has one.
if (worked) {
  await page.goto(`${url}/ui/runs/${worked}/diff`);
  await seen("pre .add", "+from the run");
  await page.goto(`${url}/ui/runs/${worked}/log`);
  await seen("pre", "said by the run");
  done("diff and log of a run that worked");
}

await page.goto(`${url}/ui/runners`);
await seen("h1", "Runners");
await page.goto(`${url}/ui/policy`);
await seen("h2", "Explain");
await page.fill('input[name="pool"]', "no-such-pool");
await page.getByRole("button", { name: "Explain" }).click();
await seen(".card .badge.bad", "denied");
await page.fill('input[name="pool"]', "default");
await page.getByRole("button", { name: "Explain" }).click();
await seen(".card .badge.good", "allowed");
await page.fill('input[name="secrets"]', "MOCK_SECRET");
await page.fill('input[name="hosts"]', "example.com");
await page.getByRole("button", { name: "Explain" }).click();
await seen(".card .badge.warn", "awaiting approval");
await seen(".card li", "secret-release");
await page.fill('input[name="hosts"]', "elsewhere.example");
await page.getByRole("button", { name: "Explain" }).click();
await seen(".card", "elsewhere.example");
done("policy is explained");

// Every key that is told does what is told.
await page.evaluate(() => document.activeElement?.blur());
for (const [key, text] of [["n", "Runners"], ["p", "Policy"], ["a", "Approvals"], ["r", "Runs"]]) {
  await page.keyboard.press("g");
  await page.keyboard.press(key);
  await seen("h1", text);
}
await page.keyboard.press("?");
await seen("#said", "j k move");
await page.keyboard.press("/");
assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("name")), "status");
await page.evaluate(() => document.activeElement?.blur());
for (const key of ["j", "j", "k"]) await page.keyboard.press(key);
assert.equal(await page.locator('tr[aria-selected="true"]').count(), 1);
done("keys");

// Dark by the system's wish, light by the person's.
const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const dark = await back();
await page.evaluate(() => document.activeElement?.blur());
await page.keyboard.press("t");
const light = await back();
assert.notEqual(dark, light);
done("dark and light");

await page.getByRole("button", { name: "Log out" }).click();
await seen("h1", "Log in");
const after = await fetch(`${url}/ui/api/v1/runs`, { headers: { cookie: `${cookie.name}=${cookie.value}` } });
assert.equal(after.status, 401);
done("session ends with the log-out");

assert.deepEqual(complaints, []);
await browser.close();
console.log("all checks passed");
