/**
 * The official SDKs for Node, one request a line: {"wire", "baseURL", "retries", "times"} in, what came of it out.
 * `times`: how often the application asks again when its stream breaks.
 */
import { createInterface } from "node:readline";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import { streamText } from "ai";
import OpenAI from "openai";

const messages = [{ role: "user", content: "go" }];

const sdks = {
  async *anthropic(baseURL, maxRetries) {
    const client = new Anthropic({ baseURL, apiKey: "none", maxRetries });
    const stream = client.messages.stream({ model: "m", max_tokens: 99, messages });
    for await (const event of stream) yield event;
    const message = await stream.finalMessage();
    yield { calls: message.content.filter((block) => block.type === "tool_use").map((block) => [block.name, block.input]), finish: message.stop_reason };
  },
  async *openai_chat(baseURL, maxRetries) {
    const client = new OpenAI({ baseURL, apiKey: "none", maxRetries });
    const calls = [];
    let finish = null;
    for await (const chunk of await client.chat.completions.create({ model: "m", messages, stream: true })) {
      for (const choice of chunk.choices) {
        finish = choice.finish_reason ?? finish;
        for (const piece of choice.delta.tool_calls ?? []) {
          const call = (calls[piece.index] ??= ["", ""]);
          call[0] += piece.function?.name ?? "";
          call[1] += piece.function?.arguments ?? "";
        }
      }
      yield chunk;
    }
    yield { calls: calls.map(([name, args]) => [name, parsed(args)]), finish };
  },
  async *openai_responses(baseURL, maxRetries) {
    const client = new OpenAI({ baseURL, apiKey: "none", maxRetries });
    let finish = null;
    const calls = [];
    for await (const event of await client.responses.create({ model: "m", input: "go", stream: true, store: false })) {
      if (event.type === "response.output_item.done" && event.item.type === "function_call") calls.push([event.item.name, parsed(event.item.arguments)]);
      finish = event.response?.status ?? finish;
      yield event;
    }
    yield { calls, finish };
  },
  async *gemini(baseUrl) {
    const client = new GoogleGenAI({ apiKey: "none", httpOptions: { baseUrl } });
    let finish = null;
    for await (const chunk of await client.models.generateContentStream({ model: "g", contents: "go" })) {
      finish = chunk.candidates?.[0]?.finishReason ?? finish;
      yield JSON.parse(JSON.stringify({ ...chunk, sdkHttpResponse: undefined }));
    }
    yield { finish };
  },
  async *ai_openai(baseURL, maxRetries) {
    yield* aiSdk(createOpenAI({ baseURL, apiKey: "none" }).responses("m"), maxRetries);
  },
  async *ai_chat(baseURL, maxRetries) {
    yield* aiSdk(createOpenAI({ baseURL, apiKey: "none" }).chat("m"), maxRetries);
  },
  async *ai_anthropic(baseURL, maxRetries) {
    yield* aiSdk(createAnthropic({ baseURL: `${baseURL}/v1`, apiKey: "none" })("m"), maxRetries);
  },
};

async function* aiSdk(model, maxRetries) {
  const result = streamText({ model, prompt: "go", maxRetries, onError: () => {} });
  let text = "";
  let finish = null;
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "finish") finish = part.finishReason;
  }
  yield { text, finish };
}

/** @param {string} text */
function parsed(text) {
  try {
    return text === "" ? {} : JSON.parse(text);
  } catch {
    return text;
  }
}

async function ask({ wire, baseURL, retries = 0, times = 1 }) {
  let error = null;
  for (let time = 0; time < times; time += 1) {
    const events = [];
    const began = performance.now();
    try {
      for await (const event of sdks[wire](baseURL, retries)) events.push(event);
      return { events, error: null, asked: time + 1, seconds: (performance.now() - began) / 1000 };
    } catch (caught) {
      error = { name: caught?.constructor?.name ?? "Error", message: String(caught?.message ?? caught), status: caught?.status ?? null, events: events.length };
    }
  }
  return { events: [], error, asked: times };
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await ask(JSON.parse(line))));
}
