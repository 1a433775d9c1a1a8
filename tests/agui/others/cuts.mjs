// The official AG-UI client before 1.0 and TanStack AI's ChatClient, cut off anywhere: see tests/server/clients/cutting.mjs.

import { HttpAgent } from "@ag-ui/client";
import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import { toolDefinition } from "@tanstack/ai";
import { agUi, answer, cutting } from "../../server/clients/cutting.mjs";

async function tanstack(question) {
  const { fetch, seen } = cutting(question);
  const { url, threadId, how } = question;
  const errors = [];
  const connection = fetchServerSentEvents(`${url}/agui`, { fetchClient: fetch, reconnect: { delayMs: 5 } });
  const persistence = how === "join";
  const ran = [];
  const tools = question.tools?.map(({ name, description, parameters }) =>
    toolDefinition({ name, description, inputSchema: parameters }).client((args, context) => {
      ran.push(context?.toolCallId ?? context);
      return new Promise(() => {}); // it takes its time: what it returns would begin another run
    }),
  );
  const onError = (error) => errors.push(String(error));
  const client = new ChatClient({ connection, threadId, persistence, tools, onError });
  if (how === "join") client.attach();
  else {
    const sent = client.sendMessage(question.text ?? "Go"); // which ends with the tools
    if (!tools) await sent;
  }
  for (let idle = 0, tries = 0; idle < 4 && tries < (question.again ? 20_000 : 2000); tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    idle = seen.streams && !seen.open && (ran.length || !client.getIsLoading()) ? idle + 1 : 0;
  }
  const messages = client.getMessages().map(({ role, parts }) => ({ role, parts }));
  client.stop?.();
  return { messages, errors, ran, ...seen };
}

await answer((question) => (question.client === "tanstack" ? tanstack(question) : agUi(HttpAgent, question)));
