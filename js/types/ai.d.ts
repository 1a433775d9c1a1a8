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
export function callstreamTransport<T>(DefaultChatTransport: new (options: any) => T, { firstPause, longestPause, tries, ...options }: {
    api: string;
    [option: string]: any;
} & Pauses): T;
/**
 * What to give a chat as `onFinish`. After a lost connection it resumes the stream, again and again with growing pauses. If
 * the run has ended meanwhile, there is nothing to resume, and it loads the messages.
 *
 * A chat of `ai` 5 would add what it resumes to the half that it has. With `?sdk=5` the answer is shown when it is whole.
 *
 * @param {Options} options
 * @returns {(finished: { isDisconnect?: boolean }) => Promise<void>}
 */
export function resumeDropped({ api, chatId, chat, fetch, request, ...pauses }: Options): (finished: {
    isDisconnect?: boolean;
}) => Promise<void>;
/**
 * what is used of `useChat`
 */
export type Chat = {
    resumeStream: () => Promise<void>;
    setMessages: (messages: any[]) => void;
};
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
 */
export type Pauses = {
    /**
     * milliseconds before the first try; each further pause is twice as long
     */
    firstPause?: number | undefined;
    longestPause?: number | undefined;
    tries?: number | undefined;
};
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
 */
export type ChatOptions = {
    /**
     * as the transport has it
     */
    api: string;
    chatId: string;
    chat: () => Chat;
    fetch?: typeof fetch | undefined;
    /**
     * for loading the messages: headers, credentials
     */
    request?: RequestInit | undefined;
};
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
 */
export type Options = ChatOptions & Pauses;
