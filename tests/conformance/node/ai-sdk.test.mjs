// Vercel `ai` with @ai-sdk/openai-compatible: it checks every chunk against a schema.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { aborts, apiKey, baseURL, callBlock, model, requests, says, script } from "./stack.mjs";

const provider = createOpenAICompatible({ name: "catalejo", baseURL, apiKey, includeUsage: true });
const steps = (isStepCount ?? stepCountIs)(4);
const thinking = { catalejo: { thinking: { type: "enabled" } } };
const tools = {
  get_weather: tool({
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
  get_time: tool({
    description: "The time in a zone",
    inputSchema: z.object({ zone: z.string() }),
    execute: async ({ zone }) => `noon in ${zone}`,
  }),
};

test("streamText with two tools and reasoning", async () => {
  await script(
    says("Which?</mm:think>" + callBlock(["get_weather", { city: "Rome" }], ["get_time", { zone: "CET" }])),
    says("Good.</mm:think>Sunny at noon."),
  );
  const result = streamText({
    model: provider(model), tools, stopWhen: steps, maxRetries: 0,
    prompt: "Weather and time?", providerOptions: thinking,
  });
  let text = "";
  let reasoning = "";
  const calls = [];
  for await (const part of result.fullStream) {
    assert.notEqual(part.type, "error", part.error);
    if (part.type === "text-delta") text += part.text ?? part.delta;
    if (part.type === "reasoning-delta") reasoning += part.text ?? part.delta;
    if (part.type === "tool-call") calls.push([part.toolName, part.input]);
  }
  assert.equal(text, "Sunny at noon.");
  assert.equal(reasoning, "Which?Good.");
  assert.deepEqual(calls, [["get_weather", { city: "Rome" }], ["get_time", { zone: "CET" }]]);
  const second = (await requests())[1].text;
  assert.ok(second.includes("sunny in Rome") && second.includes("noon in CET"));
  assert.ok(second.includes("Which?"), "past reasoning comes back");
  const usage = await result.totalUsage;
  assert.ok(usage.outputTokens > 0 && usage.inputTokens > 0);
});

test("generateText gives the same", async () => {
  await script(says(callBlock(["get_weather", { city: "Rome" }])), says("Sunny."));
  const result = await generateText({ model: provider(model), tools, stopWhen: steps, maxRetries: 0, prompt: "Weather?" });
  assert.equal(result.text, "Sunny.");
  assert.equal(result.steps.length, 2);
});

// A 1x1 picture.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

test("streamText with a picture and a tool", async () => {
  await script(says(callBlock(["get_weather", { city: "Rome" }])), says("Sunny, as in the picture."));
  const image = { type: "file", mediaType: "image/png", data: pixel };
  const content = [{ type: "text", text: "Is it like this now?" }, image];
  const result = streamText({
    model: provider(model), tools, stopWhen: steps, maxRetries: 0, messages: [{ role: "user", content }],
  });
  for await (const part of result.fullStream) assert.notEqual(part.type, "error", part.error);
  assert.equal(await result.text, "Sunny, as in the picture.");
  const seen = await requests();
  assert.deepEqual(seen.map((r) => r.items.length), [1, 1]);
  assert.ok(seen[1].text.includes("sunny in Rome"));
});

test("an object by schema, streamed", async () => {
  const typed = createOpenAICompatible({ name: "catalejo", baseURL, apiKey, supportsStructuredOutputs: true });
  await script(says('{"city": "Rome", "days": 3}'));
  const schema = z.object({ city: z.string(), days: z.number() });
  const result = streamText({
    model: typed(model), maxRetries: 0, prompt: "Where?", output: Output.object({ schema }),
  });
  const partial = [];
  for await (const one of result.partialOutputStream ?? result.experimental_partialOutputStream) partial.push(one);
  assert.deepEqual(partial.at(-1), { city: "Rome", days: 3 });
  assert.ok((await requests())[0].grammar.value.includes("days"));
});

test("a failure in mid-stream is an error part", async () => {
  await script({ pieces: ["one", " two"], fail_after: 1 });
  const kinds = [];
  const result = streamText({ model: provider(model), prompt: "Hello", maxRetries: 0, onError: () => {} });
  for await (const part of result.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("error"), kinds.join(" "));
});

test("an abort signal aborts the engine's request", async () => {
  await script({ pieces: Array(3000).fill("again "), delay_ms: 10 });
  const control = new AbortController();
  const result = streamText({
    model: provider(model), prompt: "Hello", maxRetries: 0, abortSignal: control.signal, onError: () => {},
  });
  try {
    for await (const part of result.fullStream) if (part.type === "text-delta") control.abort();
  } catch (error) {
    assert.equal(error.name, "AbortError");
  }
  assert.equal((await aborts()).length, 1);
});
