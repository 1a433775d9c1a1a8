/**
 * Whether a reader at the end of growing content is still there. Only scrolling back means leaving: when the content grows,
 * or is laid out again at another width, its end moves away from the reader, not the reader from it.
 */
export class EndOfScroll {
  #isHeld = true;
  #lastTop = 0;
  #scroller;
  #near;

  /**
   * @param {HTMLElement} scroller
   * @param {number} near how many pixels from the end still count as at the end
   */
  constructor(scroller, near) {
    this.#scroller = scroller;
    this.#near = near;
  }

  /** To be called at every scroll. */
  isHeld() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < this.#near) this.#isHeld = true;
    else if (scrollTop < this.#lastTop) this.#isHeld = false;
    this.#lastTop = scrollTop;
    return this.#isHeld;
  }

  /** The reader goes elsewhere by other means. */
  release() {
    this.#isHeld = false;
  }

  /** The reader goes back to the end by other means. */
  hold() {
    this.#isHeld = true;
  }
}
