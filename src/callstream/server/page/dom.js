/**
 * Elements from names. Strings are text and nothing else: no function of this page takes markup.
 */

/**
 * Makes an element. `properties` are attributes; one that is `true` is present, one that is `false` or null is left out.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string | number | boolean | null | undefined>} [properties]
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) made.append(child);
  return made;
}

/**
 * A button that does something.
 *
 * @param {string} text
 * @param {() => void} action
 * @param {Record<string, string | boolean>} [properties]
 */
export function button(text, action, properties = {}) {
  const made = element("button", { type: "button", class: "button", ...properties }, text);
  made.addEventListener("click", action);
  return made;
}

/**
 * Sets text only if it differs, to avoid needless layout.
 *
 * @param {Node} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * The element of the document with that id, which must exist and be of that kind.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind
 * @returns {Kind}
 */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`expected an element #${id} of kind ${kind.name} in the page`);
  return found;
}

let lastNumber = 0;

/**
 * An id for an element, new in this document.
 *
 * @param {string} prefix
 */
export function freshId(prefix) {
  lastNumber += 1;
  return `${prefix}-${lastNumber}`;
}
