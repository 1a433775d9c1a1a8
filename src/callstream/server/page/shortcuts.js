/**
 * Keys that work everywhere but in a field, unless the user has turned them off, as people who use speech input do; the
 * choice is kept.
 *
 * @typedef {{ keys: string[], does: string, action: () => void }} Shortcut
 */

import { element } from "./dom.js";

/** @type {{ [key: string]: string }} */
const NAMES = { ArrowDown: "↓", ArrowUp: "↑" };
const KEY = "callstream.shortcuts";

/**
 * @param {Shortcut[]} shortcuts
 * @param {HTMLElement} list where they are explained
 * @param {HTMLInputElement} box whether they are on
 */
export function listen(shortcuts, list, box) {
  box.checked = localStorage.getItem(KEY) !== "off";
  box.addEventListener("change", () => localStorage.setItem(KEY, box.checked ? "on" : "off"));
  for (const { keys, does } of shortcuts) {
    const names = keys.map((key) => element("kbd", {}, NAMES[key] ?? key));
    list.append(element("div", {}, element("dt", {}, ...names), element("dd", {}, does)));
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isField(event.target)) return;
    if (!box.checked || document.querySelector("dialog[open]") !== null) return;
    const shortcut = shortcuts.find(({ keys }) => keys.includes(event.key));
    if (shortcut === undefined) return;
    event.preventDefault();
    shortcut.action();
  });
}

/** @param {EventTarget | null} target */
function isField(target) {
  return target instanceof HTMLElement && target.matches("input, textarea, select, [contenteditable]");
}
