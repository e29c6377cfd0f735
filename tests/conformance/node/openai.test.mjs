// openai (Node): text, tool calls by the stream helper, errors, retries, and a client that leaves.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { aborts, apiKey, baseURL, callBlock, model, requests, says, script } from "./stack.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: "Hello" }];
const tools = ["get_weather", "get_time"].map((name) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties: { city: { type: "string" } } } },
}));

test("stream and plain answer have the same text", async () => {
  const text = "Grüße, 世界! Once upon a time";
  await script(says(text));
  const whole = await client.chat.completions.create({ model, messages });
  assert.equal(whole.choices[0].message.content, text);
  let streamed = "";
  let usage;
  const options = { model, messages, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create(options)) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, text);
  assert.deepEqual(usage, whole.usage);
});

test("the stream helper puts parallel calls together", async () => {
  await script(says("Let me see." + callBlock(["get_weather", { city: "Rome" }], ["get_time", { city: "Oslo" }])));
  const final = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
  const [choice] = final.choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.equal(choice.message.content, "Let me see.");
  assert.deepEqual(
    choice.message.tool_calls.map((c) => [c.function.name, JSON.parse(c.function.arguments)]),
    [["get_weather", { city: "Rome" }], ["get_time", { city: "Oslo" }]],
  );
  assert.equal(new Set(choice.message.tool_calls.map((c) => c.id)).size, 2);
});

test("errors have their class, code and param", async () => {
  await script();
  const call = (fields, own = client) => own.chat.completions.create({ model, messages, ...fields });
  await assert.rejects(call({ temperature: -1 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
  await assert.rejects(call({ model: "x" }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
  const stranger = new OpenAI({ baseURL, apiKey: "sk-wrong", maxRetries: 0 });
  await assert.rejects(call({}, stranger), (e) => e instanceof OpenAI.AuthenticationError && Boolean(e.requestID));
  assert.deepEqual(await requests(), []);
});

test("503 before the first byte is retried", async () => {
  await script({ status: 503, headers: { "retry-after": "1" } }, says("fine"));
  const patient = new OpenAI({ baseURL, apiKey, maxRetries: 1 });
  const answer = await patient.chat.completions.create({ model, messages });
  assert.equal(answer.choices[0].message.content, "fine");
  assert.equal((await requests()).length, 2);
});

test("a failure in mid-stream is an error", async () => {
  await script({ pieces: ["one", " two"], fail_after: 1 });
  let seen = "";
  await assert.rejects(async () => {
    for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
      seen += chunk.choices[0]?.delta.content ?? "";
    }
  }, OpenAI.APIError);
  assert.equal(seen, "one");
});

test("leaving the loop aborts the engine's request", async () => {
  await script({ pieces: Array(3000).fill("again "), delay_ms: 10 });
  for await (const chunk of await client.chat.completions.create({ model, messages, stream: true })) {
    if (chunk.choices[0]?.delta.content) break;
  }
  const [abort] = await aborts();
  assert.equal(abort.phase, "decode");
});

test("an AbortSignal during prefill aborts the engine's request", async () => {
  await script({ pieces: ["late"], first_delay_ms: 60000 });
  const signal = AbortSignal.timeout(500);
  await assert.rejects(client.chat.completions.create({ model, messages }, { signal }));
  const [abort] = await aborts();
  assert.equal(abort.phase, "prefill");
});

test("a hundred calls through one pool, with an idle pause between", async () => {
  await script();
  const ask = async (i) => {
    const answer = await client.chat.completions.create({ model, messages: [{ role: "user", content: `number ${i}` }] });
    assert.equal(answer.choices[0].message.content, `number ${i}`);
  };
  await Promise.all(Array.from({ length: 50 }, (_, i) => ask(i)));
  await new Promise((resolve) => setTimeout(resolve, 6000));
  await Promise.all(Array.from({ length: 50 }, (_, i) => ask(i)));
});
