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
 *
 * @typedef {import("./toolcalls.js").ToolCall} ToolCall
 * @typedef {import("./toolcalls.js").ToolCalls} ToolCalls
 * @typedef {string | number | readonly (string | number)[]} FieldPath a field's name, or the way to it
 */

import { createContext, createElement, useCallback, useContext, useSyncExternalStore } from "react";
import { GrowingText } from "./growingtext.js";

/** @type {import("react").Context<ToolCalls | null>} */
const Calls = createContext(/** @type {ToolCalls | null} */ (null));

/** @param {{ calls: ToolCalls, children?: import("react").ReactNode }} properties */
export function ToolCallsProvider({ calls, children }) {
  return createElement(Calls.Provider, { value: calls }, children);
}

/**
 * The ids of all calls, in the order they began. Renders when a call begins.
 *
 * @returns {readonly string[]}
 */
export function useToolCallIds() {
  return useShown(null, (calls) => calls.ids);
}

/**
 * A call's name, state, result and complete arguments. Renders when one of them changes, not while arguments are written.
 *
 * @param {string} id
 * @returns {ToolCall | undefined} undefined before the call begins
 */
export function useToolCall(id) {
  return useShown(id, (calls) => calls.call(id));
}

/**
 * A part of a call's arguments as far as it is written; without a path, all of them. Renders when that part changes.
 *
 * @param {string} id
 * @param {FieldPath} [path]
 * @returns {any} undefined before it begins
 */
export function useField(id, path = []) {
  return useShown(id, (calls) => calls.field(id, keysOf(path)));
}

/**
 * A ref for an element whose text is a string of the arguments. Text is added to it as it is written, without rendering.
 *
 * @param {string} id
 * @param {FieldPath} path
 * @returns {(element: Element | null) => void}
 */
export function useGrowingText(id, path) {
  const calls = useCalls();
  const keys = JSON.stringify(keysOf(path));
  /** @type {(element: Element | null) => void} */
  const ref = useCallback(follow(calls, id, JSON.parse(keys)), [calls, id, keys]);
  return ref;
}

/**
 * What a ref does. React before 19 calls it with null in the end, later ones what it returned.
 *
 * @param {ToolCalls} calls
 * @param {string} id
 * @param {(string | number)[]} path
 * @returns {(element: Element | null) => any}
 */
function follow(calls, id, path) {
  /** @type {() => void} */
  let end = () => {};
  return (element) => {
    end();
    if (element === null) return undefined;
    const text = new GrowingText(element);
    const show = () => {
      const value = calls.field(id, path);
      text.show(typeof value === "string" ? value : "");
    };
    show();
    end = calls.subscribe(id, show);
    return end;
  };
}

/** @returns {ToolCalls} */
function useCalls() {
  const calls = useContext(Calls);
  if (calls === null) throw new Error("useToolCall and its like need a <ToolCallsProvider calls={…}> around them");
  return calls;
}

/**
 * @template T
 * @param {string | null} id
 * @param {(calls: ToolCalls) => T} read
 * @returns {T}
 */
function useShown(id, read) {
  const calls = useCalls();
  const subscribe = useCallback((/** @type {() => void} */ listener) => calls.subscribe(id, listener), [calls, id]);
  const snapshot = () => read(calls);
  return useSyncExternalStore(subscribe, snapshot, snapshot);
}

/**
 * @param {FieldPath} path
 * @returns {readonly (string | number)[]}
 */
function keysOf(path) {
  return typeof path === "object" ? path : [path];
}
