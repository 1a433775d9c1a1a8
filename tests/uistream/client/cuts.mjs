// The AI SDK, cut off anywhere: see tests/server/clients/cutting.mjs. `client`: "ai7-read", or "ai5", "ai6", "ai7" for its Chat; with
// "-callstream" its transport is that of the npm package, and so is what comes back by itself.
//
// Chat comes back with resumeStream, or loads its messages if the run has ended meanwhile. That of `ai` 5 would show a message
// twice of which it has kept a half, so its page is loaded anew.

import { answer, comeBack, cutting } from "../../server/clients/cutting.mjs";
import { callstreamTransport, resumeDropped } from "../../../js/ai.js";

const sdks = Object.fromEntries(await Promise.all([5, 6, 7].map(async (sdk) => [sdk, await import(`ai${sdk}`)])));

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => (this.messages = this.messages.concat(message));
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, structuredClone(message)));
  snapshot = (value) => structuredClone(value);
}

async function live(question) {
  const { client, url, threadId, how, tools } = question;
  const sdk = Number(client[2]);
  const { AbstractChat, DefaultChatTransport, readUIMessageStream } = sdks[sdk];
  const { fetch, seen } = cutting(question);
  const api = `${url}/ui?sdk=${sdk}`;
  const isHealing = client.endsWith("-callstream");
  const options = { api, fetch, body: tools ? { tools } : {} };
  const transport = isHealing
    ? callstreamTransport(DefaultChatTransport, { ...options, firstPause: 20 })
    : new DefaultChatTransport(options);
  const load = async () => (await fetch(`${url}/ui/${threadId}/messages?sdk=${sdk}`)).json();
  const text = question.text ?? "Go";
  const user = { id: "user", role: "user", parts: [{ type: "text", text }] };
  const errors = [];
  const ran = [];
  if (client.endsWith("-read")) {
    const read = async (stream) => {
      let last;
      for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message;
      return last;
    };
    const failed = (error) => void errors.push(String(error));
    let message;
    if (how !== "join") {
      const given = { chatId: threadId, messages: [user], trigger: "submit-message" };
      message = await transport.sendMessages(given).then(read).catch(failed);
    }
    await comeBack(question, seen, async () => {
      const stream = await transport.reconnectToStream({ chatId: threadId });
      message = stream ? await read(stream).catch(failed) : (await load()).at(-1);
    });
    return { messages: [user, message], errors: errors.slice(seen.cuts), ran, ...seen };
  }
  let chat;
  let healing = Promise.resolve();
  const page = { resumeStream: () => chat.resumeStream(), setMessages: (messages) => void (chat.messages = messages) };
  const heal = resumeDropped({ api, chatId: threadId, chat: () => page, fetch, firstPause: 20 });
  const onFinish = (finished) => void (isHealing && (healing = Promise.all([healing, heal(finished)])));
  class Chat extends AbstractChat {
    constructor() {
      const onError = (error) => errors.push(String(error));
      const onToolCall = ({ toolCall }) => void (tools?.some(({ name }) => name === toolCall.toolName) && ran.push(toolCall.toolCallId));
      super({ id: threadId, transport, state: new State(), onError, onToolCall, onFinish });
    }
  }
  chat = new Chat();
  if (how !== "join") await chat.sendMessage({ text });
  if (isHealing) {
    if (how === "join") {
      chat.messages = await load();
      await chat.resumeStream();
    }
    for (let last; last !== healing; await last) last = healing;
    return { messages: chat.messages, errors: [], ran, ...seen };
  }
  await comeBack(question, seen, async () => {
    errors.length = 0;
    if (how === "join" || sdk === 5) {
      chat = new Chat();
      chat.messages = await load();
    }
    const before = seen.streams;
    await chat.resumeStream();
    if (seen.streams === before) chat.messages = await load(); // 204: the run has ended
  });
  return { messages: chat.messages, errors, ran, ...seen };
}

await answer(live);
