/**
 * Chats of a Callstream server for the AI SDK, which resumes a stream when a page is loaded or becomes visible again, but not
 * when the connection is lost while somebody is looking.
 *
 *     const comeBack = resumeDropped({ api: "https://example.com/ui?sdk=7", chatId, chat: () => chat.current });
 *     chat.current = useChat({ id: chatId, transport, onFinish: comeBack });
 *
 * @typedef {object} Chat what is used of `useChat`
 * @property {() => Promise<void>} resumeStream
 * @property {(messages: any[]) => void} setMessages
 *
 * @typedef {object} Options
 * @property {string} api as the transport has it
 * @property {string} chatId
 * @property {() => Chat} chat
 * @property {typeof fetch} [fetch]
 * @property {RequestInit} [request] for loading the messages: headers, credentials
 * @property {number} [firstPause] milliseconds before the first try; each further pause is twice as long
 * @property {number} [longestPause]
 * @property {number} [tries]
 */

/**
 * What to give a chat as `onFinish`. After a lost connection it resumes the stream, again and again with growing pauses. If
 * the run has ended meanwhile, there is nothing to resume, and it loads the messages.
 *
 * @param {Options} options
 * @returns {(finished: { isDisconnect?: boolean }) => Promise<void>}
 */
export function resumeDropped({ api, chatId, chat, fetch = globalThis.fetch, request, ...pauses }) {
  const { firstPause = 300, longestPause = 10_000, tries = 20 } = pauses;
  /** @type {"idle" | "resuming" | "dropped" | "finished"} */
  let state = "idle";

  return async ({ isDisconnect }) => {
    if (state !== "idle") {
      state = isDisconnect ? "dropped" : "finished";
      return;
    }
    if (!isDisconnect) return;
    let pause = firstPause;
    try {
      for (let number = 0; number < tries; number += 1) {
        await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
        pause = Math.min(pause * 2, longestPause);
        state = "resuming";
        await chat().resumeStream();
        if (current() === "finished") return;
        if (current() === "resuming") {
          const loaded = await fetch(messagesUrl(api, chatId), request).catch(() => null);
          if (loaded?.ok) return chat().setMessages(await loaded.json());
        }
      }
    } finally {
      state = "idle";
    }
  };

  /** The state after others may have changed it. @returns {string} */
  function current() {
    return state;
  }
}

/**
 * @param {string} api
 * @param {string} chatId
 */
function messagesUrl(api, chatId) {
  const [path, query] = api.split("?");
  return `${path.replace(/\/$/, "")}/${encodeURIComponent(chatId)}/messages${query ? `?${query}` : ""}`;
}
