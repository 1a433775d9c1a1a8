/** Work for the next frame: however often it is asked for, it is done once. */
export class Frame {
  #isWanted = false;
  #paint;

  /** @param {() => void} paint */
  constructor(paint) {
    this.#paint = paint;
  }

  want() {
    if (this.#isWanted) return;
    this.#isWanted = true;
    requestAnimationFrame(() => {
      this.#isWanted = false;
      this.#paint();
    });
  }
}
