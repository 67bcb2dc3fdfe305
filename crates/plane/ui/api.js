// Speaks with the plane. The token is never here: the plane keeps it behind a session cookie that
// scripts cannot read.

const HEADERS = { "content-type": "application/json", "x-warrant-page": "1" };

/** A refusal of the plane. */
export class Refused extends Error {
  constructor(status, body) {
    const reasons = [body?.error, ...(body?.reasons ?? []), ...(body?.issues ?? []).map((issue) => issue.message ?? issue)];
    super(reasons.filter(Boolean).join("; ") || `the plane said ${status}`);
    this.status = status;
    this.body = body;
  }
}

async function call(method, path, body) {
  const options = { method, headers: HEADERS, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  const text = await response.text();
  let value = null;
  try { value = text ? JSON.parse(text) : null; } catch { value = { error: text }; }
  if (!response.ok) throw new Refused(response.status, value);
  return value;
}

export const get = (path) => call("GET", `/ui/api${path}`);
export const post = (path, body) => call("POST", `/ui/api${path}`, body ?? {});
export const logIn = (token) => call("POST", "/ui/session", { token });
export const redeem = (ticket) => call("POST", "/ui/session", { ticket });
export const logOut = () => call("DELETE", "/ui/session");

/** Returns a blob as text. */
export async function blobText(digest) {
  const response = await fetch(`/ui/api/v1/blobs/${encodeURIComponent(digest)}`, { headers: HEADERS, cache: "no-store" });
  if (!response.ok) throw new Refused(response.status, null);
  return response.text();
}

/** Listens to server-sent events until `stop` is called. */
export function listen(path, handlers) {
  const source = new EventSource(`/ui/api${path}`);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => {
      if (name === "end") source.close();
      handle(event.data, event);
    });
  }
  return () => source.close();
}
