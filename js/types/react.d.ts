/** @param {{ calls: ToolCalls, children?: import("react").ReactNode }} properties */
export function ToolCallsProvider({ calls, children }: {
    calls: ToolCalls;
    children?: import("react").ReactNode;
}): import("react").FunctionComponentElement<import("react").ProviderProps<import("./toolcalls.js").ToolCalls | null>>;
/**
 * The ids of all calls, in the order they began. Renders when a call begins.
 *
 * @returns {readonly string[]}
 */
export function useToolCallIds(): readonly string[];
/**
 * A call's name, state, result and complete arguments. Renders when one of them changes, not while arguments are written.
 *
 * @param {string} id
 * @returns {ToolCall | undefined} undefined before the call begins
 */
export function useToolCall(id: string): ToolCall | undefined;
/**
 * A part of a call's arguments as far as it is written; without a path, all of them. Renders when that part changes.
 *
 * @param {string} id
 * @param {FieldPath} [path]
 * @returns {any} undefined before it begins
 */
export function useField(id: string, path?: FieldPath): any;
/**
 * A ref for an element whose text is a string of the arguments. Text is added to it as it is written, without rendering.
 *
 * @param {string} id
 * @param {FieldPath} path
 * @returns {(element: Element | null) => void}
 */
export function useGrowingText(id: string, path: FieldPath): (element: Element | null) => void;
/**
 * Tool calls in React components, while they are written.
 *
 *     <ToolCallsProvider calls={calls}>
 *       <Document id={id} />
 *     </ToolCallsProvider>
 *
 *     function Document({ id }) {
 *       const call = useToolCall(id);
 *       const title = useField(id, "title");
 *       const content = useGrowingText(id, "content");
 *       return <article aria-busy={call?.state === "writing"}><h1>{title}</h1><div ref={content} /></article>;
 *     }
 *
 * A component is rendered when what its hooks return has changed, at most once a frame. Text of any length grows without
 * rendering through `useGrowingText`.
 */
export type ToolCall = import("./toolcalls.js").ToolCall;
/**
 * Tool calls in React components, while they are written.
 *
 *     <ToolCallsProvider calls={calls}>
 *       <Document id={id} />
 *     </ToolCallsProvider>
 *
 *     function Document({ id }) {
 *       const call = useToolCall(id);
 *       const title = useField(id, "title");
 *       const content = useGrowingText(id, "content");
 *       return <article aria-busy={call?.state === "writing"}><h1>{title}</h1><div ref={content} /></article>;
 *     }
 *
 * A component is rendered when what its hooks return has changed, at most once a frame. Text of any length grows without
 * rendering through `useGrowingText`.
 */
export type ToolCalls = import("./toolcalls.js").ToolCalls;
/**
 * a field's name, or the way to it
 */
export type FieldPath = string | number | readonly (string | number)[];
