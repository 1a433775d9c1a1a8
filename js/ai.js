/**
 * Chats of a Callstream server for the AI SDK, which resumes a stream when a page is loaded or becomes visible again, but not
 * when the connection is lost while somebody is looking.
 *
 *     const transport = callstreamTransport(DefaultChatTransport, { api: "https://example.com/ui?sdk=7" });
 *     const chat = useChat({ id: chatId, resume: true, transport });
 *
 * For a chat with another transport there is `resumeDropped`:
 *
 *     const comeBack = resumeDropped({ api: "https://example.com/ui?sdk=7", chatId, chat: () => chat.current });
 *     chat.current = useChat({ id: chatId, transport, onFinish: comeBack });
 *
 * @typedef {object} Chat what is used of `useChat`
 * @property {() => Promise<void>} resumeStream
 * @property {(messages: any[]) => void} setMessages
 *
 * @typedef {object} Pauses
 * @property {number} [firstPause] milliseconds before the first try; each further pause is twice as long
 * @property {number} [longestPause]
 * @property {number} [tries]
 *
 * @typedef {object} ChatOptions
 * @property {string} api as the transport has it
 * @property {string} chatId
 * @property {() => Chat} chat
 * @property {typeof fetch} [fetch]
 * @property {RequestInit} [request] for loading the messages: headers, credentials
 *
 * @typedef {ChatOptions & Pauses} Options
 */

import { Delivered } from "./delivered.js";
import { refusal, rest } from "./rest.js";

/**
 * A transport whose streams survive a lost connection: it asks for the run again, and passes on what the chat does not have
 * yet. The chat does not notice, and no request is sent twice. It gives up after so many tries without a new chunk.
 *
 * What it cannot heal: another process goes on with a run in the middle of a response, and the chat is one of `ai` 5 or 6, which
 * cannot take back what it shows. The stream then fails as one whose connection is lost, and `resumeDropped` is for that.
 *
 * The chat's `stop()` stops the run on the server too, and the next message waits for that.
 *
 * @template T
 * @param {new (options: any) => T} DefaultChatTransport that of `ai`
 * @param {{ api: string, [option: string]: any } & Pauses} options those of `DefaultChatTransport`, and the pauses
 * @returns {T}
 */
export function callstreamTransport(DefaultChatTransport, { firstPause = 300, longestPause = 10_000, tries = 20, ...options }) {
  const Base = /** @type {any} */ (DefaultChatTransport);
  class CallstreamTransport extends Base {
    /** @type {Promise<any> | undefined} the last stop */
    #stop;

    /** @param {any} given */
    async sendMessages(given) {
      await this.#stop;
      return this.#heal(this.#watch(given), await super.sendMessages(given), given);
    }

    /** @param {any} given */
    async reconnectToStream(given) {
      const stream = await super.reconnectToStream(given);
      return stream === null ? null : this.#heal(this.#watch(given), stream, given);
    }

    /** @param {any} given */
    #watch({ chatId, headers, abortSignal }) {
      const delivered = new Delivered();
      const stop = async () => {
        const { api, fetch = globalThis.fetch, credentials, headers: own } = options;
        const all = { ...plain(await (own?.call ? own() : own)), ...plain(headers), "x-run-id": delivered.runId };
        await fetch(chatUrl(api, chatId, "stop"), { method: "POST", credentials, headers: all }).catch(() => null);
      };
      abortSignal?.addEventListener("abort", () => delivered.isOver || (this.#stop = stop()));
      return delivered;
    }

    /**
     * @param {Delivered} delivered
     * @param {ReadableStream} stream
     * @param {any} given
     */
    #heal(delivered, stream, { chatId, body, metadata, headers, abortSignal }) {
      let reader = stream.getReader();
      let failures = 0;

      /** @param {any} lost thrown if the run cannot be had again */
      const rejoin = async (lost) => {
        // What the SDK itself refuses has a name of its own; coming back would bring it again.
        if (delivered.isLost || !delivered.runId || String(lost?.name).startsWith("AI_")) throw lost;
        const all = { ...plain(headers), "x-run-id": delivered.runId };
        while ((failures += 1) <= tries) {
          await rest(Math.min(firstPause * 2 ** (failures - 1), longestPause), abortSignal);
          if (abortSignal?.aborted) break;
          try {
            const again = await super.reconnectToStream({ chatId, body, metadata, headers: all, abortSignal });
            if (again === null) break;
            reader = again.getReader();
            return delivered.startOver();
          } catch (error) {
            if (refusal(error) !== undefined) throw error;
          }
        }
        throw lost;
      };

      /** @param {ReadableStreamDefaultController} controller */
      const pull = async (controller) => {
        for (;;) {
          let lost = new TypeError("network error: it ended early");
          try {
            const { done, value } = await reader.read();
            const chunks = done ? [] : delivered.take(value);
            for (const chunk of chunks) controller.enqueue(chunk);
            if (chunks.length > 0) return void (failures = 0);
            if (!done && !delivered.isLost) continue;
          } catch (error) {
            lost = /** @type {any} */ (error);
          }
          if (delivered.isOver) return controller.close();
          await rejoin(lost);
        }
      };
      return new ReadableStream({ pull, cancel: (reason) => reader.cancel(reason) });
    }
  }
  return new /** @type {any} */ (CallstreamTransport)(options);
}

/**
 * What to give a chat as `onFinish`. After a lost connection it resumes the stream, again and again with growing pauses. If
 * the run has ended meanwhile, there is nothing to resume, and it loads the messages.
 *
 * A chat of `ai` 5 would add what it resumes to the half that it has. With `?sdk=5` the answer is shown when it is whole.
 *
 * @param {Options} options
 * @returns {(finished: { isDisconnect?: boolean }) => Promise<void>}
 */
export function resumeDropped({ api, chatId, chat, fetch = globalThis.fetch, request, ...pauses }) {
  const { firstPause = 300, longestPause = 10_000, tries = 20 } = pauses;
  /** @type {string} idle, resuming, dropped or finished */
  let state = "idle";
  const appends = /[?&]sdk=5\b/.test(api);

  // Waits until no run is active.
  const ended = async () => {
    const running = await fetch(chatUrl(api, chatId, "stream"), request).catch(() => null);
    return running?.ok ? running.text().then(() => true, () => false) : false;
  };

  const load = async () => {
    const loaded = await fetch(chatUrl(api, chatId, "messages"), request).catch(() => null);
    if (loaded?.ok) chat().setMessages(await loaded.json());
    return Boolean(loaded?.ok);
  };

  return async ({ isDisconnect }) => {
    if (state !== "idle") {
      state = isDisconnect ? "dropped" : "finished";
      return;
    }
    if (!isDisconnect) return;
    let pause = firstPause;
    try {
      for (let number = 0; number < tries; number += 1) {
        await rest(pause);
        pause = Math.min(pause * 2, longestPause);
        if (appends) {
          if ((await ended()) && (await load())) return;
          continue;
        }
        state = "resuming";
        await chat().resumeStream();
        if (state === "finished") return;
        if (state === "resuming" && (await load())) return;
      }
    } finally {
      state = "idle";
    }
  };
}

/** @param {any} headers as `fetch` takes them */
function plain(headers) {
  return Object.fromEntries(new Headers(headers));
}

/**
 * @param {string} api
 * @param {string} chatId
 * @param {"messages" | "stop" | "stream"} what
 */
function chatUrl(api, chatId, what) {
  const [path, query] = api.split("?");
  return `${path.replace(/\/$/, "")}/${encodeURIComponent(chatId)}/${what}${query ? `?${query}` : ""}`;
}
