// Drives an MCP server with the official SDK: calls in on standard input, what came of them out.
//
//   node drive.mjs stdio COMMAND [ARGUMENT…] < calls.json
//   node drive.mjs http URL [TOKEN] < calls.json
//
// MCP_SDK names the package of the SDK, when another version is to be used.
// calls.json: [{"tool", "arguments", "cancelOnProgress"?}, …], made one after the other.
// Output: {"server", "instructions", "tools", "results": [{"result"?, "error"?, "progress"}]},
// or {"refused": {"code", "message"}} when the server takes no conversation.

const sdk = process.env.MCP_SDK ?? "@modelcontextprotocol/sdk";
const { Client } = await import(`${sdk}/client/index.js`);
const { StdioClientTransport } = await import(`${sdk}/client/stdio.js`);
const { StreamableHTTPClientTransport } = await import(`${sdk}/client/streamableHttp.js`);

const [kind, target, ...rest] = process.argv.slice(2);
const parts = [];
for await (const part of process.stdin) parts.push(part);
const calls = JSON.parse(Buffer.concat(parts).toString("utf8"));

function transport() {
  if (kind === "stdio") {
    return new StdioClientTransport({ command: target, args: rest, env: process.env, stderr: "inherit" });
  }
  const headers = rest[0] ? { authorization: `Bearer ${rest[0]}` } : {};
  return new StreamableHTTPClientTransport(new URL(target), { requestInit: { headers } });
}

const client = new Client({ name: "driver", version: "1.0.0" });
try {
  await client.connect(transport());
} catch (error) {
  const refused = { code: error.code, message: String(error.message ?? error) };
  process.stdout.write(JSON.stringify({ refused }));
  process.exit(0);
}
const { tools } = await client.listTools();
const results = [];
for (const call of calls) {
  const progress = [];
  const stop = new AbortController();
  const options = {
    timeout: 60_000,
    signal: stop.signal,
    onprogress: (told) => {
      progress.push(told);
      if (call.cancelOnProgress) stop.abort("enough");
    },
  };
  try {
    const result = await client.callTool(
      { name: call.tool, arguments: call.arguments ?? {} }, undefined, options);
    results.push({ result, progress });
  } catch (error) {
    results.push({ error: { code: error.code, message: String(error.message ?? error) }, progress });
  }
}
const report = {
  server: client.getServerVersion(), instructions: client.getInstructions(), tools, results,
};
await client.transport.terminateSession?.();
await client.close();
process.stdout.write(JSON.stringify(report));
