// CopilotKit's browser core, cut off anywhere: see tests/server/clients/cutting.mjs. It comes back as a page that is loaded anew.

import { CopilotKitCore } from "@copilotkit/core";
import { z } from "zod";
import { answer, comeBack, cutting } from "../../clients/cutting.mjs";

globalThis.window = globalThis; // without one, it takes itself to be rendered on a server, and asks nobody
const network = globalThis.fetch;

async function live(question) {
  const { url, threadId, how } = question;
  const { fetch, seen } = cutting(question, network);
  globalThis.fetch = fetch; // it takes no other
  const errors = [];
  const ran = [];
  const tools = question.tools?.map(({ name, description }) => ({
    name,
    description,
    followUp: false,
    parameters: z.object({}).passthrough(),
    handler: async (args, { toolCall }) => void ran.push(toolCall.id),
  }));
  const load = async () => {
    const core = new CopilotKitCore({ runtimeUrl: `${url}/copilotkit`, tools });
    core.subscribe({ onError: ({ error }) => void errors.push(error.message) });
    while (core.runtimeConnectionStatus === "connecting") await new Promise((resolve) => setTimeout(resolve, 1));
    const agent = core.getAgent("default");
    agent.threadId = threadId;
    return { core, agent };
  };
  let page = await load();
  if (how !== "join") {
    page.agent.addMessage({ id: "user", role: "user", content: question.text ?? "Go" });
    await page.core.runAgent(page);
  }
  await comeBack(question, seen, async () => {
    errors.length = 0;
    page = await load();
    await page.core.connectAgent(page);
  });
  const messages = page.agent.messages.filter(({ toolCallId }) => !ran.includes(toolCallId)); // what its tools have returned
  return { messages, state: page.agent.state, errors, ran, ...seen };
}

await answer(live);
