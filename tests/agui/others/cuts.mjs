// The official AG-UI client before 1.0 and TanStack AI's ChatClient, cut off anywhere: see tests/server/clients/cutting.mjs.

import { HttpAgent } from "@ag-ui/client";
import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import { agUi, answer, cutting } from "../../server/clients/cutting.mjs";

async function tanstack(question) {
  const { fetch, seen } = cutting(question);
  const { url, threadId, how } = question;
  const errors = [];
  const connection = fetchServerSentEvents(`${url}/agui`, { fetchClient: fetch, reconnect: { delayMs: 5 } });
  const persistence = how === "join";
  const client = new ChatClient({ connection, threadId, persistence, onError: (error) => errors.push(String(error)) });
  if (how === "join") client.attach();
  else await client.sendMessage("Go");
  for (let idle = 0, tries = 0; idle < 4 && tries < 2000; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    idle = seen.streams && !seen.open && !client.getIsLoading() ? idle + 1 : 0;
  }
  const messages = client.getMessages().map(({ role, parts }) => ({ role, parts }));
  client.stop?.();
  return { messages, errors, ...seen };
}

await answer((question) => (question.client === "tanstack" ? tanstack(question) : agUi(HttpAgent, question)));
