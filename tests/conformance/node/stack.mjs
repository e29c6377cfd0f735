// The stack that tests/conformance/stack.py started, seen from Node.
const { CATALEJO_URL, CATALEJO_KEY, CATALEJO_MODEL, CATALEJO_MOCK } = process.env;
if (!CATALEJO_URL) throw new Error("run: python -m tests.conformance.stack npm test --prefix tests/conformance/node");

export const baseURL = `${CATALEJO_URL}/v1`;
export const apiKey = CATALEJO_KEY;
export const model = CATALEJO_MODEL;
const EOS = [498];
const N = "]<]minimax[>[";
const MARKERS = [N, "<tool_call>", "</tool_call>", "<mm:think>", "</mm:think>"];

async function call(method, path, body) {
  const response = await fetch(CATALEJO_MOCK + path, { method, body: body && JSON.stringify(body) });
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  return response.text();
}

/** The engine's next answers, in turn; the last repeats. Clears the log. */
export async function script(...answers) {
  await call("PUT", "/script", answers);
  await call("DELETE", "/log");
}

async function log(event) {
  const text = await call("GET", `/log?event=${event}`);
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

export const requests = () => log("request");

/** Waits for the first abort, at most 3 s. */
export async function aborts() {
  for (let i = 0; i < 60; i++) {
    const found = await log("abort");
    if (found.length) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return [];
}

/** M3's syntax for tool calls: callBlock(["name", {key: "value"}], ...). */
export function callBlock(...calls) {
  const invokes = calls.map(([name, args]) => {
    const fields = Object.entries(args).map(([key, value]) => `${N}<${key}>${value}${N}</${key}>`);
    return `${N}<invoke name="${name}">${fields.join("")}${N}</invoke>\n`;
  });
  return `${N}<tool_call>\n${invokes.join("")}${N}</tool_call>`;
}

/** An answer of a script: the text in pieces of a few characters, control tokens whole, then end of turn. */
export function says(text, more = {}) {
  const pieces = [];
  for (let start = 0; start < text.length; ) {
    const marker = MARKERS.find((m) => text.startsWith(m, start));
    const next = MARKERS.map((m) => text.indexOf(m, start)).filter((at) => at >= 0);
    const end = marker ? start + marker.length : Math.min(start + 7, text.length, ...next);
    pieces.push(text.slice(start, end));
    start = end;
  }
  return { pieces: [...pieces, EOS], ...more };
}
