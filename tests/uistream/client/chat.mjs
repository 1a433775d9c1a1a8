// The AI SDK's chat against a real server: the life of one client. One line of JSON in, one line out.
//
//   {"sdk": 6 | 7, "url": "http://…", "chatId": "…", "messages": […], "body": {…}, "steps": [STEP, …], "until": "…"}
//
// With `heals`, the npm package's resumeDropped is its onFinish, and waits so many milliseconds at first. With `survives`, the
// transport is the npm package's, and waits so long.
// STEP: {"send": "text"} | {"resume": true} | {"output": {…}}, what addToolOutput takes; without a toolCallId, of the tool's last call |
// {"approve": true | false, "id": an approval's, by default that of the first that is asked for} | {"drop": n} before a send: its
// connection is cut after n chunks, or after each number of a list those of the next responses | {"regenerate": true} |
// {"send": "text", "stop": n}: stops when n messages' parts have come | {"reload": true}: a new client that loads the chat. `messages`: what the client has at first, which may be out of date.
// The answer: the messages, the chat's status, and everything that onToolCall, onError and onFinish were told.

import { createInterface } from "node:readline";
import { callstreamTransport, resumeDropped } from "../../../js/ai.js";

const sdks = Object.fromEntries(await Promise.all([6, 7].map(async (sdk) => [sdk, await import(`ai${sdk}`)])));
console.warn = console.error = () => {};
const MOST = 50; // requests of one client

async function live({ sdk, url, chatId, messages, body, steps, answers, heals, survives }) {
  const { AbstractChat, DefaultChatTransport } = sdks[sdk];
  const helpers = [
    sdks[sdk].lastAssistantMessageIsCompleteWithToolCalls,
    sdks[sdk].lastAssistantMessageIsCompleteWithApprovalResponses,
  ];
  class State {
    status = "ready";
    error = undefined;
    messages = [];
    pushMessage = (message) => (this.messages = this.messages.concat(message));
    popMessage = () => (this.messages = this.messages.slice(0, -1));
    replaceMessage = (index, message) => (this.messages = this.messages.with(index, structuredClone(message)));
    snapshot = (value) => structuredClone(value);
  }
  class Chat extends AbstractChat {
    constructor(options) {
      super({ ...options, state: new State() });
    }
  }
  const told = { calls: [], errors: [], finished: [], statuses: [], requests: 0 };
  let drops = [];
  let answering = Promise.resolve();
  const cutting = async (...args) => {
    if (++told.requests > MOST) throw new Error(`more than ${MOST} requests: it sends for ever`);
    const response = await fetch(...args);
    told.statuses.push(response.status);
    let left = response.body ? drops.shift() : undefined;
    if (!left) return response;
    const reader = response.body.getReader();
    const cut = new ReadableStream({
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) return controller.close();
        controller.enqueue(value);
        if (--left <= 0) {
          await reader.cancel();
          // A moment later, as a network error: what is still queued is lost with it.
          setTimeout(() => controller.error(new TypeError("network error: the connection was cut")), 20);
          await new Promise(() => {});
        }
      },
    });
    return new Response(cut, { status: response.status, headers: response.headers });
  };
  const make = () => {
    const healing = {
      resumeStream: () => chat.resumeStream(),
      setMessages: (messages) => void ((told.loaded = true), (chat.messages = messages)),
    };
    const api = `${url}/ui?sdk=${sdk}`;
    const comeBack = resumeDropped({ api, chatId, chat: () => healing, firstPause: heals ?? 1 });
    const chat = new Chat({
      id: chatId,
      transport: survives
        ? callstreamTransport(DefaultChatTransport, { api, body: body ?? {}, fetch: cutting, firstPause: survives })
        : new DefaultChatTransport({ api, body: body ?? {}, fetch: cutting }),
      sendAutomaticallyWhen: (given) => helpers.some((helper) => helper(given)),
      onToolCall: ({ toolCall }) => {
        told.calls.push(toolCall.toolName);
        const output = answers?.[toolCall.toolName];
        if (output !== undefined) {
          answering = answering.then(() => chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output }));
        }
      },
      onError: (error) => told.errors.push(String(error?.message ?? error)),
      onFinish: ({ isDisconnect, isError, finishReason }) => {
        told.finished.push({ isDisconnect, isError, finishReason });
        if (heals) answering = Promise.all([answering, comeBack({ isDisconnect })]);
      },
    });
    return chat;
  };
  let chat = make();
  if (messages) chat.messages = messages;
  const settled = async () => {
    for (let idle = 0; idle < 8; ) {
      await answering;
      await new Promise((resolve) => setTimeout(resolve, 10));
      idle = chat.status === "ready" || chat.status === "error" ? idle + 1 : 0;
    }
  };
  for (const step of steps) {
    if (step.drop) drops = [step.drop].flat();
    if (step.reload) {
      chat = make();
      chat.messages = await (await fetch(`${url}/ui/${encodeURIComponent(chatId)}/messages?sdk=${sdk}`)).json();
    }
    if (step.send) {
      const sent = chat.sendMessage({ text: step.send });
      if ("stop" in step) {
        while ((chat.messages.at(-1)?.role === "assistant" ? chat.messages.at(-1).parts.length : 0) < step.stop) {
          await new Promise((resolve) => setTimeout(resolve, 2));
        }
        await chat.stop();
      }
      await sent;
    }
    if (step.regenerate) await chat.regenerate();
    if (step.resume) await chat.resumeStream();
    const parts = chat.messages.at(-1)?.parts;
    if ("approve" in step) {
      const asked = parts.find((each) => each.state === "approval-requested");
      if (step.id) asked.approval.id = step.id;
      await chat.addToolApprovalResponse({ id: asked.approval.id, approved: step.approve });
    }
    if (step.output) {
      const called = parts.findLast((each) => each.type === `tool-${step.output.tool}`);
      if (step.output.toolCallId) called.toolCallId = step.output.toolCallId;
      await chat.addToolOutput({ toolCallId: called.toolCallId, ...step.output });
    }
    await settled();
  }
  return { messages: chat.messages, status: chat.status, ...told };
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  let answer;
  try {
    answer = await live(JSON.parse(line));
  } catch (error) {
    answer = { failed: String(error?.stack ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
