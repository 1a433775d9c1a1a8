/**
 * Whether somebody who reads at the end of something that grows is still there. He leaves by scrolling back, and by nothing
 * else: what grows, or is laid out anew in another width, moves its end away from him, and not him from it.
 */
export class EndOfScroll {
  #isHeld = true;
  #lastTop = 0;
  #scroller;
  #near;

  /**
   * @param {HTMLElement} scroller
   * @param {number} near so many pixels from the end count as at the end
   */
  constructor(scroller, near) {
    this.#scroller = scroller;
    this.#near = near;
  }

  /** To be asked at every scroll. */
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
