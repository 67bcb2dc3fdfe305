// A scripted model on loopback, for driving real agent programs without a real model.
//
// It speaks Anthropic's Messages API (POST …/v1/messages) and OpenAI's Responses API
// (POST …/responses), streamed or whole. It needs nothing but node.
//
//   node server.mjs --script script.json [--log requests.jsonl] [--port 0]
//
// prints `listening on http://127.0.0.1:PORT`, then serves until its standard input closes.
//
// The script is a list of turns: {"tool": NAME, "input": OBJECT} calls a tool (several at once with
// {"tools": [{"tool", "input"}, …]}), {"text": "…"} answers and ends. Which turn is next follows
// from how many turns of tool results the conversation already holds, so the server keeps no
// state: retries, side conversations and several agents at once cannot put it out of step. A
// request that offers no tools (titles, summaries, quotas) is answered with a short text. After
// the last turn every answer is the text `done`. The log has one line for each request: {path, body}.

import { appendFileSync, readFileSync } from "node:fs";
import { createServer } from "node:http";

const options = {};
for (let i = 2; i < process.argv.length; i += 2) {
  options[process.argv[i].replace(/^--/, "")] = process.argv[i + 1];
}
const script = JSON.parse(readFileSync(options.script, "utf8"));
const MAX_BODY = 64 * 1024 * 1024;

function turnAt(index) {
  const turn = script[index] ?? { text: "done" };
  if (turn.text !== undefined) return { text: turn.text, calls: [] };
  return { text: undefined, calls: turn.tools ?? [turn] };
}

// Counts the turns whose tool results the model has been shown.
function turnsDone(groups) {
  return groups.filter(Boolean).length;
}

function messagesTurn(body) {
  if (!body.tools?.length) return turnAt(script.length);
  const hasResult = (message) =>
    message.role === "user" &&
    Array.isArray(message.content) &&
    message.content.some((block) => block.type === "tool_result");
  return turnAt(turnsDone((body.messages ?? []).map(hasResult)));
}

function responsesTurn(body) {
  if (!body.tools?.length) return turnAt(script.length);
  const items = Array.isArray(body.input) ? body.input : [];
  // A run of outputs without anything else between them answers one turn.
  const isOutput = (item) => /_call_output$/.test(item?.type ?? "");
  const starts = items.map((item, at) => isOutput(item) && !isOutput(items[at - 1]));
  return turnAt(turnsDone(starts));
}

let serial = 0;
const id = (prefix) => `${prefix}_${process.pid}_${++serial}`;

function messagesAnswer(body, turn) {
  const content = turn.calls.map((call) => ({
    type: "tool_use", id: id("toolu"), name: call.tool, input: call.input ?? {},
  }));
  if (turn.text !== undefined) content.push({ type: "text", text: turn.text });
  return {
    id: id("msg"), type: "message", role: "assistant", model: body.model, content,
    stop_reason: turn.calls.length ? "tool_use" : "end_turn", stop_sequence: null,
    usage: { input_tokens: 10, output_tokens: 5 },
  };
}

function messagesEvents(answer) {
  const events = [{
    type: "message_start",
    message: { ...answer, content: [], stop_reason: null, usage: { input_tokens: 10, output_tokens: 1 } },
  }];
  answer.content.forEach((block, index) => {
    const isText = block.type === "text";
    events.push({
      type: "content_block_start", index,
      content_block: isText ? { type: "text", text: "" } : { ...block, input: {} },
    });
    events.push({
      type: "content_block_delta", index,
      delta: isText
        ? { type: "text_delta", text: block.text }
        : { type: "input_json_delta", partial_json: JSON.stringify(block.input) },
    });
    events.push({ type: "content_block_stop", index });
  });
  events.push({
    type: "message_delta",
    delta: { stop_reason: answer.stop_reason, stop_sequence: null },
    usage: { output_tokens: 5 },
  });
  events.push({ type: "message_stop" });
  return events;
}

function responsesAnswer(body, turn) {
  const output = turn.calls.map((call) => {
    const item = { id: id("fc"), call_id: id("call"), name: call.tool, status: "completed" };
    if (call.namespace) item.namespace = call.namespace;
    return typeof call.input === "string"
      ? { ...item, type: "custom_tool_call", input: call.input }
      : { ...item, type: "function_call", arguments: JSON.stringify(call.input ?? {}) };
  });
  if (turn.text !== undefined) {
    output.push({
      type: "message", id: id("msg"), role: "assistant", status: "completed",
      content: [{ type: "output_text", text: turn.text, annotations: [] }],
    });
  }
  return {
    id: id("resp"), object: "response", created_at: 0, status: "completed", model: body.model, output,
    usage: {
      input_tokens: 10, input_tokens_details: { cached_tokens: 0 },
      output_tokens: 5, output_tokens_details: { reasoning_tokens: 0 }, total_tokens: 15,
    },
  };
}

function responsesEvents(answer) {
  const begun = { ...answer, status: "in_progress", output: [] };
  const events = [{ type: "response.created", response: begun }];
  answer.output.forEach((item, output_index) => {
    events.push({ type: "response.output_item.added", output_index, item });
    events.push({ type: "response.output_item.done", output_index, item });
  });
  events.push({ type: "response.completed", response: answer });
  return events;
}

function send(response, body, answer, events) {
  if (!body.stream) {
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify(answer));
    return;
  }
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  for (const event of events) {
    response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  }
  response.end();
}

function answer(path, body, response) {
  if (/\/messages\/count_tokens$/.test(path)) {
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ input_tokens: 10 }));
  } else if (/\/messages$/.test(path)) {
    const whole = messagesAnswer(body, messagesTurn(body));
    send(response, body, whole, messagesEvents(whole));
  } else if (/\/responses$/.test(path)) {
    const whole = responsesAnswer(body, responsesTurn(body));
    send(response, body, whole, responsesEvents(whole));
  } else if (/\/models$/.test(path)) {
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify({ object: "list", data: [], models: [] }));
  } else {
    response.writeHead(404, { "content-type": "application/json" });
    response.end(JSON.stringify({ error: { type: "not_found_error", message: `nothing at ${path}` } }));
  }
}

const server = createServer((request, response) => {
  const path = new URL(request.url, "http://127.0.0.1").pathname;
  const parts = [];
  let size = 0;
  request.on("data", (part) => {
    size += part.length;
    if (size > MAX_BODY) request.destroy();
    else parts.push(part);
  });
  request.on("end", () => {
    let body = {};
    try {
      body = parts.length ? JSON.parse(Buffer.concat(parts).toString("utf8")) : {};
    } catch {
      response.writeHead(400, { "content-type": "application/json" });
      response.end(JSON.stringify({ error: { type: "invalid_request_error", message: "not JSON" } }));
      return;
    }
    if (options.log) appendFileSync(options.log, `${JSON.stringify({ path, body })}\n`);
    answer(path, body, response);
  });
});

server.listen(Number(options.port ?? 0), "127.0.0.1", () => {
  process.stdout.write(`listening on http://127.0.0.1:${server.address().port}\n`);
});

// The test that started us holds the other end: when it is gone, so are we.
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
