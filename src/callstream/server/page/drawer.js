/** At phone width the threads are a drawer: out of sight, and out of the way of the keyboard, until it is opened. */

const NARROW = matchMedia("(max-width: 760px)");

export class Drawer {
  #isOpen = false;
  #nav;
  #button;
  #scrim;

  /**
   * @param {HTMLElement} nav
   * @param {HTMLButtonElement} button
   * @param {HTMLElement} scrim covers the rest while it is open
   */
  constructor(nav, button, scrim) {
    this.#nav = nav;
    this.#button = button;
    this.#scrim = scrim;
    button.addEventListener("click", () => this.#set(!this.#isOpen));
    scrim.addEventListener("click", () => this.close());
    nav.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
    NARROW.addEventListener("change", () => this.#set(false));
    this.#set(false);
  }

  open() {
    this.#set(true);
  }

  close() {
    const hadFocus = this.#nav.contains(document.activeElement);
    this.#set(false);
    if (hadFocus && NARROW.matches) this.#button.focus();
  }

  /** @param {boolean} isOpen */
  #set(isOpen) {
    this.#isOpen = isOpen && NARROW.matches;
    this.#nav.classList.toggle("is-open", this.#isOpen);
    this.#nav.inert = NARROW.matches && !this.#isOpen;
    this.#scrim.hidden = !this.#isOpen;
    this.#button.setAttribute("aria-expanded", String(this.#isOpen));
  }
}
