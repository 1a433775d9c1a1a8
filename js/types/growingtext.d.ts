export class GrowingText {
    /** @param {Element} element */
    constructor(element: Element);
    /** @param {string} text all of it; only what is new is written */
    show(text: string): void;
    #private;
}
