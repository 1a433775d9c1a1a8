// The AI SDK, cut off anywhere: see tests/server/clients/cutting.mjs. `client`: "ai7-read", or "ai5", "ai6", "ai7" for its Chat.
//
// Chat comes back with resumeStream, or loads its messages if the run has ended meanwhile. That of `ai` 5 would show a message
// twice of which it has kept a half, so its page is loaded anew.

import { answer, cutting } from "../../server/clients/cutting.mjs";

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

const user = { id: "user", role: "user", parts: [{ type: "text", text: "Go" }] };

async function live(question) {
  const { client, url, threadId, how } = question;
  const sdk = Number(client[2]);
  const { AbstractChat, DefaultChatTransport, readUIMessageStream } = sdks[sdk];
  const { fetch, seen } = cutting(question);
  const transport = new DefaultChatTransport({ api: `${url}/ui?sdk=${sdk}`, fetch });
  const load = async () => (await globalThis.fetch(`${url}/ui/${threadId}/messages?sdk=${sdk}`)).json();
  const errors = [];
  if (client.endsWith("-read")) {
    const read = async (stream) => {
      let last;
      for await (const message of readUIMessageStream({ stream, terminateOnError: true })) last = message;
      return last;
    };
    let message;
    if (how !== "join") {
      const given = { chatId: threadId, messages: [user], trigger: "submit-message" };
      message = await transport.sendMessages(given).then(read).catch((error) => void errors.push(String(error)));
    }
    if (how === "join" || seen.cuts) {
      const stream = await transport.reconnectToStream({ chatId: threadId });
      message = stream ? await read(stream) : (await load()).at(-1);
    }
    return { messages: [user, message], errors: errors.slice(seen.cuts), ...seen };
  }
  class Chat extends AbstractChat {
    constructor() {
      super({ id: threadId, transport, state: new State(), onError: (error) => errors.push(String(error)) });
    }
  }
  let chat = new Chat();
  if (how !== "join") await chat.sendMessage({ text: "Go" });
  if (how === "join" || seen.cuts) {
    errors.length = 0;
    if (how === "join" || sdk === 5) {
      chat = new Chat();
      chat.messages = await load();
    }
    const before = seen.streams;
    await chat.resumeStream();
    if (seen.streams === before) chat.messages = await load(); // 204: the run has ended
  }
  return { messages: chat.messages, errors, ...seen };
}

await answer(live);
